"""Collectives in the graphs of a rank, and the manifest of a build with ranks."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from polygraphy.tools.multi_device.multi_device import DistCollective

from snapexport.builder.lint import lint_build
from snapexport.builder.verify import verify
from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from tests.builds import build
from tests.contract.test_build_directory import rewrite
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.refused import refused

RANKS, LAYERS = 2, 2
CUT = Case("llama-cut", tensor_parallel=RANKS)
Fields = dict[str, Any]


def attributes(node: onnx.NodeProto) -> dict[str, object]:
    values = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    return {n: v.decode() if isinstance(v, bytes) else v for n, v in values.items()}


def of_type(path: Path, kind: str) -> list[onnx.NodeProto]:
    graph = onnx.load(path, load_external_data=False).graph
    return [node for node in graph.node if node.op_type == kind]


@pytest.fixture(scope="module")
def for_tensorrt(tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("ranks") / "b"
    geometry = {"L_max": 96, "L_recent": 16, "K": 12, "prefill_chunk": 32, "dtype": "bf16"}
    model = cases.checkpoint("llama-cut")
    return build(model, out, target="tensorrt", tensor_parallel=RANKS, **geometry)


@pytest.mark.parametrize("graph", ["prefill", "decode"])
def test_collectives_have_the_attributes_that_polygraphy_writes(
    graph: str, for_tensorrt: Build
) -> None:
    theirs = DistCollective(nb_rank=RANKS)
    groups = {"groups": theirs.groups}
    found = [attributes(node) for node in of_type(for_tensorrt.graph(graph), "DistCollective")]
    reduce, gather = theirs.all_reduce_attrs() | groups, theirs.all_gather_attrs() | groups
    assert found == [gather, *[reduce] * (2 * LAYERS), gather]


@pytest.mark.slow
def test_each_rank_decodes_batch_slots_of_its_own() -> None:
    case = Case("deepseek-v3-cut", tensor_parallel=2, batch=4, data_parallel_attention=True)
    made = Build.open(cases.built(case).directory)
    inputs = {one.name: one.shape for one in made.manifest.graphs["decode"].inputs}
    assert inputs["input_ids"] == inputs["position_ids"] == [4, 1]
    assert inputs["past_key_values.0.key"][0] == 2 and inputs["rank"] == [1]
    exchanges = of_type(made.ranks[0].graph("decode"), "AllToAll")
    assert len(exchanges) == 2 * made.manifest.model.num_hidden_layers
    assert not of_type(made.ranks[0].graph("prefill"), "AllToAll")
    weights = {Path(one.file).name for one in made.ranks[0].manifest.weights}
    stem = "model.layers.0.self_attn.kv_b_proj"
    parts = {f"{stem}.{part}.safetensors" for part in ("key", "whole.key", "whole.value")}
    assert parts <= weights


def test_lint_takes_the_graphs_of_a_rank(for_tensorrt: Build) -> None:
    assert lint_build(for_tensorrt, "tensorrt") == []


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return Path(shutil.copytree(cases.built(CUT).directory, tmp_path / "copy"))


def test_a_graph_is_cut_between_its_collectives(mine: Path) -> None:
    made = Build.open(mine)
    segments = made.manifest.segments
    assert {name: len(parts) for name, parts in segments.items()} == {
        "prefill": 2 * LAYERS + 3,
        "decode": 2 * LAYERS + 3,
    }
    one = made.of_rank(1)
    for parts in segments.values():
        for part in parts:
            onnx.checker.check_model(one.directory / part.file)
    verify(made)


def test_summary_and_operators_of_a_build_with_ranks_are_shown(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(mine), "--verify"]) == 0
    told = capsys.readouterr().out
    assert "2, each with" in told and "4 snapexport::AllReduce" in told


CHANGES: dict[str, tuple[Callable[[Fields], object], str]] = {
    "other ranks": (lambda m: m.update(tensor_parallel=4), "no rank|is missing|its geometry wants"),
    "one rank": (lambda m: m.update(tensor_parallel=1), "its geometry wants"),
    "heads": (lambda m: m["model"].update(num_key_value_heads=1), "cannot be cut for 2 ranks"),
    "outside": (
        lambda m: m["weights"][0].update(file="rank2/weights/x.safetensors"),
        "is missing",
    ),
    "a file": (
        lambda m: m["segments"]["decode"][1].update(file="decode-2.onnx"),
        "was changed",
    ),
    "a hash": (lambda m: m["segments"]["decode"][1].update(sha256="0" * 64), "was changed"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_manifest_whose_ranks_or_segments_do_not_fit_is_refused(name: str, mine: Path) -> None:
    change, message = CHANGES[name]
    rewrite(mine, change)
    with pytest.raises(UserError, match=message):
        Build.open(mine)


def test_a_file_of_a_rank_that_the_manifest_lacks_is_refused(mine: Path) -> None:
    (mine / "rank1/weights/more.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="not in the manifest"):
        Build.open(mine)


@pytest.mark.parametrize("command", ["engine", "diff", "eval", "bench"])
def test_commands_for_one_rank_refuse_a_build_of_several(
    command: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--tensor-parallel 2" in refused(capsys, command, mine)
