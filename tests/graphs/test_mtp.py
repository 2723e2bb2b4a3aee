"""Builds with multi-token prediction: what is refused, and what the other commands make of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from snapexport import LLM, SamplingParams
from snapexport.builder import BuildOptions
from snapexport.builder.derive import derive
from snapexport.builder.lint import lint_build
from snapexport.builder.plan import PlanRequest, make_plan
from snapexport.builder.plan.footprint import footprint
from snapexport.builder.plan.model import read_model
from snapexport.builder.plan.weights import stored_bytes
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_options import GraphOptions
from snapexport.errors import UserError
from snapexport.files.copying import CLONE_BLOCK
from snapexport.methods.table import graph_options
from tests.builds import build
from tests.oracle import cases, checkpoints
from tests.oracle.cases import Case

torch.set_num_threads(1)
pytestmark = pytest.mark.slow

NAME = "deepseek-v3-mtp"
RING = 16
CASE = Case(NAME, mtp=True)
SMALL: dict[str, Any] = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return checkpoints.make("deepseek-v3", tmp_path / "model", mtp=True)


def change_tensors(checkpoint: Path, **changes: torch.Tensor | None) -> None:
    """None: without the tensor. Names are of the layer's own tensors, with _ for dots."""
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.startswith("model.layers.3.")]:
        key = name.removeprefix("model.layers.3.").replace(".", "_")
        if changes.get("all", 0) is None or changes.get(key, 0) is None:
            del tensors[name]
        elif key in changes:
            tensors[name] = changes[key]  # type: ignore[assignment]
    save_file(tensors, file, {"format": "pt"})


def test_without_the_flag_the_layer_changes_no_graph(checkpoint: Path, tmp_path: Path) -> None:
    with_layer = build(checkpoint, tmp_path / "a", baseline=True, **SMALL)
    file = checkpoint / "model.safetensors"
    # The other tensors stay where they are: graphs hold their places.
    file.write_bytes(file.read_bytes().replace(b"model.layers.3.", b"other.layers.3."))
    without = build(checkpoint, tmp_path / "b", baseline=True, **SMALL)
    hashes = [
        {name: entry.sha256 for name, entry in made.manifest.graphs.items()}
        for made in (with_layer, without)
    ]
    assert hashes[0] == hashes[1] and "mtp" not in hashes[0]
    assert {weight.file for weight in with_layer.manifest.weights} == {
        weight.file for weight in without.manifest.weights
    }


REFUSED: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "no layer": ({"all": None}, "the checkpoint has no model.layers.3."),
    "a missing norm": ({"hnorm_weight": None}, "among them model.layers.3.hnorm.weight"),
    "another width": (
        {"eh_proj_weight": torch.ones(64, 64)},
        "model.layers.3.eh_proj.weight has shape [64, 64], config.json wants [64, 128]",
    ),
    "an embedding of its own": (
        {"embed_tokens_weight": torch.ones(257, 64)},
        "model.layers.3.embed_tokens.weight has other values",
    ),
    "a head of its own": (
        {"shared_head_head_weight": torch.ones(257, 64)},
        "model.layers.3.shared_head.head.weight has other values",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layer_that_is_not_as_it_should_be_is_refused(
    name: str, checkpoint: Path, tmp_path: Path
) -> None:
    changes, message = REFUSED[name]
    change_tensors(checkpoint, **changes)
    with pytest.raises(UserError) as error:
        build(checkpoint, tmp_path / "b", mtp=True, **SMALL)
    assert message in str(error.value)
    assert not (tmp_path / "b").exists()


def test_copies_of_embedding_and_head_may_be_missing(checkpoint: Path, tmp_path: Path) -> None:
    change_tensors(checkpoint, embed_tokens_weight=None, shared_head_head_weight=None)
    made = build(checkpoint, tmp_path / "b", mtp=True, **SMALL)
    assert "mtp" in made.manifest.graphs


@pytest.mark.parametrize(("count", "message"), [(0, "has no model.layers.3."), (2, "one layer")])
def test_another_number_of_layers_is_refused(
    count: int, message: str, checkpoint: Path, tmp_path: Path
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["num_nextn_predict_layers"] = count
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        build(checkpoint, tmp_path / "b", mtp=True, **SMALL)


def test_the_runtime_answers_as_without_drafts() -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = [list(cases.prompt(length)) for length in (12, 90)]
    with_drafts, plain = (
        LLM(cases.built(case).directory, threads=1).generate(prompts, params)
        for case in (CASE, Case(NAME))
    )
    assert [one.token_ids for one in with_drafts] == [one.token_ids for one in plain]


def test_derived_caches_are_without_drafts(tmp_path: Path) -> None:
    """The traces of a build with drafts make the graphs of other caches."""
    directory = cases.built(Case(NAME, mtp=True, baseline=True)).directory
    own = Build.open(directory)
    outputs = {spec.name for spec in own.manifest.graphs["baseline-decode"].outputs}
    assert "hidden_states" in outputs
    made = derive(own, own.manifest.geometry, tmp_path / "derived")
    assert not made.manifest.graph_options.methods and "mtp" not in made.manifest.graphs
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = [list(cases.prompt(90))]
    one, other = (
        LLM(where, threads=1).generate(prompts, params) for where in (directory, made.directory)
    )
    assert one[0].token_ids == other[0].token_ids


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_lint_finds_nothing_in_the_graphs(target: str) -> None:
    made = Build.open(cases.built(Case(NAME, mtp=True, target=target)).directory)
    assert lint_build(made, made.manifest.target) == []


def test_plan_counts_the_layer_if_asked(tmp_path: Path) -> None:
    model, made = cases.checkpoint(NAME), Build.open(cases.built(CASE).directory)
    options = BuildOptions.of(
        model=str(model), out=tmp_path, L_max=96, L_recent=RING, K=12, L_obs=8, batch=3, mtp=True
    )
    geometry = made.manifest.geometry
    counted, without = (read_model(str(model), one) for one in (options.graph, GraphOptions()))
    files = sum(file.size for file in made.manifest.weights)
    headers = len(made.manifest.weights) * 2 * CLONE_BLOCK
    assert files - headers <= stored_bytes(counted, options) <= files
    layer = stored_bytes(counted, options) - stored_bytes(without, options)
    tensors = load_file(model / "model.safetensors")
    copies = ("layers.3.embed_tokens.weight", "layers.3.shared_head.head.weight")
    assert layer == sum(
        one.nbytes
        for name, one in tensors.items()
        if name.startswith("model.layers.3.") and not name.endswith(copies)
    )
    ring = 4 * RING * (32 + 8)
    taken = [
        footprint(counted, replace(options, graph=graph_options({"mtp": mtp})), geometry, 32)
        for mtp in (True, False)
    ]
    assert taken[0].request_cache - taken[1].request_cache == ring


def test_plan_refuses_models_without_the_layer(tmp_path: Path) -> None:
    model = checkpoints.make("llama", tmp_path / "model")
    with pytest.raises(UserError, match="--mtp is not supported"):
        make_plan(PlanRequest(1 << 30, {"model": str(model), "L_max": 64, "mtp": True}))


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    model = checkpoints.make("llama", tmp_path / "model")
    with pytest.raises(UserError, match="--mtp is not supported with the architecture Llama"):
        build(model, tmp_path / "b", mtp=True, **SMALL)


def test_a_manifest_of_another_ring_is_refused(tmp_path: Path) -> None:
    """Shapes follow from the geometry: here the ring is made one position longer."""
    directory = cases.built(CASE).directory
    manifest = Build.open(directory).manifest
    entry = manifest.graphs["mtp"]
    inputs = [
        spec.model_copy(update={"shape": [3, 1, RING + 1, 32]})
        if spec.name == "past_key_values.3.key"
        else spec
        for spec in entry.inputs
    ]
    graphs = manifest.graphs | {"mtp": entry.model_copy(update={"inputs": inputs})}
    out = tmp_path / "b"
    out.mkdir()
    manifest.model_copy(update={"graphs": graphs}).write(out)
    with pytest.raises(UserError, match="inputs of mtp"):
        Build.open(out)
