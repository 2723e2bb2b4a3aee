"""What is refused of a build whose manifest was changed together with its digest, and by what."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from snapexport.builder.verify import verify
from snapexport.cli.app import main
from snapexport.contract.build_directory import Build, require_interface
from snapexport.contract.manifest import DIGEST, MANIFEST, WEIGHTS, Manifest
from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams

Fields = dict[str, Any]
NORM = f"{WEIGHTS}/model.norm.weight.safetensors"


@pytest.fixture
def mine(tiny_build: Build, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(tiny_build.directory, tmp_path / "copy"))


def rewrite(build: Path, change: Callable[[Fields], object]) -> None:
    """Change the manifest, and its digest with it."""
    fields = json.loads((build / MANIFEST).read_text())
    change(fields)
    text = json.dumps(fields)
    (build / MANIFEST).write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (build / DIGEST).write_text(f"{digest}  {MANIFEST}\n")


def rewrite_graph(build: Path, file: str, change: Callable[[onnx.ModelProto], object]) -> None:
    """Change a graph, and its hash in the manifest."""
    model = onnx.load(build / file, load_external_data=False)
    change(model)
    raw = model.SerializeToString()
    (build / file).write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    name = file.removesuffix(".onnx")
    rewrite(build, lambda fields: fields["graphs"][name].update(sha256=digest))


def spec(fields: Fields, graph: str, name: str) -> Fields:
    entry = fields["graphs"][graph]
    both = entry["inputs"] + entry["outputs"]
    return next(one for one in both if one["name"] == name)


Refused = dict[str, tuple[Callable[[Fields], object], str]]
REFUSED: dict[str, Refused] = {}
REFUSED["schema"] = {
    # By the schema: types, ranges, names of graphs, and paths that leave the build.
    "unknown key": (lambda m: m.update(surprise=1), "unknown key 'surprise'"),
    "unknown key of the geometry": (
        lambda m: m["geometry"].update(surprise=1),
        "unknown key 'geometry.surprise'",
    ),
    "unknown option of a method": (
        lambda m: m["graph_options"]["methods"].update(extend={"extend": True, "surprise": 1}),
        "the method extend has no option 'surprise'",
    ),
    "method without options": (
        lambda m: m["graph_options"]["methods"].update(surprise={}),
        "no method 'surprise' has options",
    ),
    "missing key": (lambda m: m.pop("batch"), "batch: field required"),
    "newer format": (lambda m: m.update(format_version=18), "format_version is 18"),
    "older format": (lambda m: m.update(format_version=8), "version 8 is not 17"),
    "unknown graph": (lambda m: m["graphs"].update(encode=m["graphs"]["decode"]), "graphs.encode"),
    "absolute path": (
        lambda m: m["graphs"]["decode"].update(file="/etc/hostname"),
        "graphs.decode.file: '/etc/hostname' is outside of the build",
    ),
    "path that leaves": (
        lambda m: m["weights"][0].update(file="weights/../../x"),
        "is outside of the build",
    ),
    "no layers": (
        lambda m: m["model"].update(num_hidden_layers=0),
        "num_hidden_layers: input should be greater than 0",
    ),
    "layers": (lambda m: m["model"].update(num_hidden_layers=3), "3 layers, its geometry 2"),
    "heads of too few layers": (
        lambda m: m["model"].update(head_dim=[16]),
        "head_dim has 1 values for 2 layers",
    ),
    "too few windows": (lambda m: m["model"].update(sliding_window=[0]), "1 have windows"),
    "no batch": (lambda m: m.update(batch=0), "batch: input should be greater than"),
    "huge batch": (lambda m: m.update(batch=2**40), "batch: input should be less than"),
    "huge number of caches": (
        lambda m: m["geometry"].update(num_layers=2**62),
        "geometry.num_layers: input should be less than",
    ),
    "ranks": (lambda m: m.update(tensor_parallel=3), "cannot be cut for 3 ranks"),
    "huge number of ranks": (
        lambda m: m.update(tensor_parallel=2**62),
        "tensor_parallel: input should be less than",
    ),
    "huge shape": (
        lambda m: spec(m, "decode", "logits").update(shape=[4, 2**62]),
        "shape.1: input should be less than",
    ),
    "negative shape": (
        lambda m: spec(m, "decode", "logits").update(shape=[-4, 257]),
        "shape.0: input should be greater than",
    ),
    "type of an object": (
        lambda m: spec(m, "decode", "logits").update(dtype="object"),
        "'object' is not a type of a tensor",
    ),
}
REFUSED["graphs"] = {
    # By the graphs: those that the facts want, with the inputs and outputs that follow from them.
    "heads": (lambda m: m["model"].update(num_key_value_heads=4), "its geometry wants"),
    "heads of a layer": (
        lambda m: m["model"].update(num_key_value_heads=[2, 1]),
        "its geometry wants",
    ),
    "width of values": (lambda m: m["model"].update(value_head_dim=8), "its geometry wants"),
    "head size": (lambda m: m["model"].update(head_dim=32), "its geometry wants"),
    "vocabulary": (lambda m: m["model"].update(vocab_size=258), "its geometry wants"),
    "huge vocabulary": (lambda m: m["model"].update(vocab_size=2**62), "its geometry wants"),
    "prompt": (lambda m: m["geometry"].update(L_max=63), "its geometry wants"),
    "huge prompt": (lambda m: m["geometry"].update(L_max=2**40), "its geometry wants"),
    "ring": (lambda m: m["geometry"].update(L_recent=13), "its geometry wants"),
    "kept": (lambda m: m["geometry"].update(K=9), "its geometry wants"),
    "window": (lambda m: m["geometry"].update(L_obs=5), "its geometry wants"),
    "batch": (lambda m: m.update(batch=3), "its geometry wants"),
    "chunk": (lambda m: m.update(prefill_chunk=25), "its geometry wants"),
    "single shot": (lambda m: m.update(prefill_chunk=64), "lists an unexpected graph compress"),
    "dtype": (lambda m: m.update(dtype="fp16"), "its geometry wants"),
    "cache dtype": (lambda m: m["graph_options"].update(cache_dtype="fp16"), "its geometry wants"),
    "top tokens": (
        lambda m: m["graph_options"].update(methods={"top_tokens": {"top_tokens": 5}}),
        "its geometry wants",
    ),
    "no decode": (lambda m: m["graphs"].pop("decode"), "lacks the graph decode"),
    "no compress": (lambda m: m["graphs"].pop("compress"), "lacks the graph compress"),
    "half a baseline": (
        lambda m: m["graphs"].pop("baseline-prefill"),
        "lacks the graph baseline-prefill",
    ),
    "input twice": (
        lambda m: m["graphs"]["decode"]["inputs"].append(spec(m, "decode", "input_ids")),
        "one of decode's inputs twice",
    ),
    "input more": (
        lambda m: m["graphs"]["decode"]["inputs"].append(
            {"name": "x", "dtype": "int64", "shape": [1]}
        ),
        "have int64 [1] for 'x'",
    ),
    "shape": (lambda m: spec(m, "decode", "logits").update(shape=[4, 256]), "its geometry wants"),
    "graphs exchanged": (
        lambda m: m["graphs"]["decode"].update(file="decode.1.onnx"),
        "in place of decode.onnx",
    ),
}
REFUSED["files"] = {
    # By the files: sizes, hashes, and the list of the folder of weights.
    "weight twice": (lambda m: m["weights"].append(m["weights"][0]), "file twice"),
    "weight not listed": (lambda m: m["weights"].pop(), "is not in the manifest"),
    "hash": (lambda m: m["weights"][0].update(header_sha256="x"), "was changed"),
    "place of a weight": (
        lambda m: m["weights"][0].update(file="prefill.onnx"),
        "the manifest says",
    ),
    "hidden weight": (lambda m: m["weights"][0].update(file="weights/.x"), "is missing"),
}


@pytest.mark.parametrize(("by", "what"), [(by, what) for by in REFUSED for what in REFUSED[by]])
def test_manifest_with_right_hashes_is_refused(mine: Path, by: str, what: str) -> None:
    change, message = REFUSED[by][what]
    rewrite(mine, change)
    if by != "schema":
        manifest = Manifest.read(mine)
    if by == "files":
        require_interface(manifest)
    with pytest.raises(UserError) as error:
        require_interface(manifest) if by == "graphs" else Build.open(mine)
    assert message in error.value.message


def engine(file: str = "engines/x/decode.engine", **changes: object) -> Fields:
    plan = {"file": file, "size": 1, "sha256": "0" * 64, "device_memory": 1}
    entry = {
        "version": "10.15.1.29",
        "compute_capabilities": ["9.0"],
        "gpu": "NVIDIA H200",
        "hardware_compatibility": "none",
        "version_compatible": False,
        "stripped": False,
        "plugins": None,
        "graphs": {"decode": plan},
    }
    return entry | changes


@pytest.mark.parametrize("file", ["/etc/passwd", "engines/../../x"])
def test_engine_outside_of_the_build_is_refused(mine: Path, file: str) -> None:
    inside = engine("engines/x/decode.engine")
    rewrite(mine, lambda fields: fields.update(engines={"x": inside}))
    Build.open(mine)
    rewrite(mine, lambda fields: fields.update(engines={"x": engine(file)}))
    with pytest.raises(UserError, match="outside of the build"):
        Build.open(mine)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (engine("engines/x/a\nb"), "file"),
        (engine(version="10.15\nRUN id"), "version"),
        (engine(version="10.15 && id"), "version"),
        (engine(version="10.15\n"), "version"),
        (engine(gpu="[/b]"), "gpu"),
        (engine(compute_capabilities=["9.0\n"]), "compute_capabilities"),
    ],
)
def test_engine_whose_texts_could_leave_the_manifest_is_refused(
    mine: Path, entry: Fields, message: str
) -> None:
    rewrite(mine, lambda fields: fields.update(engines={"x": entry}))
    with pytest.raises(UserError, match=rf"engines\.x\.\S*{message}"):
        Build.open(mine)


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields["versions"].update(torch="2\nRUN id"),
        lambda fields: fields["versions"].update({"a b": "1"}),
        lambda fields: fields["model"].update(architecture="[bold]"),
        lambda fields: fields.update(engines={"x\ny": engine()}),
    ],
)
def test_text_that_could_leave_the_manifest_is_refused(
    mine: Path, change: Callable[[Fields], object]
) -> None:
    rewrite(mine, change)
    with pytest.raises(UserError, match="is not valid"):
        Build.open(mine)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("file", [MANIFEST, DIGEST, "decode.onnx", NORM, "tokenizer.json"])
@pytest.mark.parametrize("make", [fifo, device])
def test_anything_but_a_plain_file_is_refused_without_waiting(
    mine: Path, file: str, make: Callable[[Path], None]
) -> None:
    (mine / "tokenizer.json").touch()
    make(mine / file)
    with pytest.raises(UserError, match=r"not a regular file|a symbolic link"):
        LLM(mine)


def test_weights_reached_by_a_link_are_refused(mine: Path) -> None:
    (mine / WEIGHTS).rename(mine.parent / "elsewhere")
    (mine / WEIGHTS).symlink_to(mine.parent / "elsewhere")
    with pytest.raises(UserError, match="weights is a symbolic link"):
        Build.open(mine)


def test_graph_beyond_the_limit_of_onnx_is_not_hashed(mine: Path) -> None:
    with (mine / "decode.onnx").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="larger than any ONNX file"):
        Build.open(mine)


def test_verify_lists_files_that_the_manifest_does_not_know(mine: Path) -> None:
    (mine / "note.txt").write_text("x")
    verified = verify(Build.open(mine))
    assert verified.compared_graphs
    assert "note.txt" in verified.other_files and "config.json" in verified.other_files
    assert not verified.unhashed_weights


def external(model: onnx.ModelProto, key: str, value: str) -> None:
    """Change where the graph reads the last norm from."""
    (tensor,) = (one for one in model.graph.initializer if one.name == "model.norm.weight")
    (entry,) = (one for one in tensor.external_data if one.key == key)
    entry.value = value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("location", "/etc/passwd", "not a weight file of the manifest"),
        ("location", f"./{NORM}", "not a weight file of the manifest"),
        ("location", "prefill.onnx", "not a weight file of the manifest"),
        ("location", "weights/lm_head.weight.safetensors", "not this weight"),
        ("offset", "0", "not this weight"),
        ("length", "4", "not this weight"),
    ],
)
def test_verify_refuses_a_graph_that_reads_other_bytes(
    mine: Path, key: str, value: str, message: str
) -> None:
    rewrite_graph(mine, "decode.onnx", lambda model: external(model, key, value))
    with pytest.raises(UserError, match=message):
        verify(Build.open(mine))


def test_verify_refuses_a_baseline_graph_of_other_shapes(mine: Path) -> None:
    def widen(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 7

    rewrite_graph(mine, "baseline-decode.onnx", widen)
    with pytest.raises(UserError, match=r"has \[7, 1\] for 'input_ids'"):
        verify(Build.open(mine))


def test_truncated_graph_with_the_right_hash_is_an_error_without_traceback(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = (mine / "decode.onnx").read_bytes()[:5000]
    (mine / "decode.onnx").write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    rewrite(mine, lambda fields: fields["graphs"]["decode"].update(sha256=digest))
    assert main(["inspect", str(mine)]) == 2
    assert "is not an ONNX file" in capsys.readouterr().err


def test_graph_that_fails_while_it_runs_is_a_users_error(mine: Path) -> None:
    def add_a_million_to_each_token(model: onnx.ModelProto) -> None:
        model.graph.node.insert(
            0, onnx.helper.make_node("Add", ["input_ids", "million"], ["far"], name="far")
        )
        million = onnx.helper.make_tensor("million", onnx.TensorProto.INT64, [1], [10**6])
        model.graph.initializer.append(million)
        for node in model.graph.node[1:]:
            node.input[:] = ["far" if name == "input_ids" else name for name in node.input]

    rewrite_graph(mine, "prefill.onnx", add_a_million_to_each_token)
    with pytest.raises(UserError, match=r"ONNX Runtime failed while it ran prefill\.onnx"):
        LLM(mine).generate([[1, 2, 3]], SamplingParams(max_tokens=1))
