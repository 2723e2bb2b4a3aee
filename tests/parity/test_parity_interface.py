"""Names, types and shapes of the contract, spelled out here, in the graphs and in the manifest."""

import pytest

from snapexport.contract.build_directory import Build
from tests.oracle import cases
from tests.oracle.cases import Case

CHUNKED = Case()
SINGLE_SHOT = Case(prefill_chunk=96, baseline=True)
B, C, D, H, HKV, L_MAX, S, V, W, K = 3, 32, 16, 4, 2, 96, 32, 257, 8, 12

Specs = dict[str, tuple[str, list[int]]]


def cache(prefix: str, batch: int, slots: int) -> Specs:
    shape = [batch, HKV, slots, D]
    names = [f"{prefix}.{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    return dict.fromkeys(names, ("tensor(float)", shape))


def integers(**shapes: list[int]) -> Specs:
    return {name: ("tensor(int64)", shape) for name, shape in shapes.items()}


WINDOWS: Specs = {f"query_window.{layer}": ("tensor(float)", [1, H, W, D]) for layer in range(2)}
KEPT: Specs = {f"topk_positions.{layer}": ("tensor(int64)", [1, HKV, K]) for layer in range(2)}


def logits(batch: int) -> Specs:
    return {"logits": ("tensor(float)", [batch, V])}


CONTRACT: dict[str, tuple[Case, Specs, Specs]] = {
    "prefill": (
        CHUNKED,
        integers(input_ids=[1, C], past_length=[1], chunk_length=[1])
        | cache("past_key_values", 1, L_MAX),
        logits(1) | cache("present", 1, L_MAX) | WINDOWS,
    ),
    "compress": (
        CHUNKED,
        integers(prompt_length=[1]) | cache("past_key_values", 1, L_MAX) | WINDOWS,
        cache("present", 1, S) | KEPT,
    ),
    "decode": (
        CHUNKED,
        integers(input_ids=[B, 1], position_ids=[B, 1], prompt_length=[B])
        | cache("past_key_values", B, S),
        logits(B) | cache("present", B, S),
    ),
    "single-shot prefill": (
        SINGLE_SHOT,
        integers(input_ids=[1, L_MAX], prompt_length=[1]),
        logits(1) | cache("present", 1, S) | KEPT,
    ),
}


@pytest.mark.parametrize("graph", CONTRACT)
def test_graph_inputs_and_outputs_are_those_of_the_contract(graph: str) -> None:
    case, inputs, outputs = CONTRACT[graph]
    session = getattr(cases.built(case), f"{graph.split()[-1]}_session")
    assert {x.name: (x.type, x.shape) for x in session.get_inputs()} == inputs
    assert {x.name: (x.type, x.shape) for x in session.get_outputs()} == outputs


@pytest.mark.parametrize("case", [CHUNKED, SINGLE_SHOT], ids=str)
def test_manifest_lists_the_inputs_and_outputs_of_each_graph(case: Case) -> None:
    for graph, entry in cases.built(case).manifest["graphs"].items():
        name = graph.removeprefix("baseline-")
        session = getattr(cases.built(case, graph.removesuffix(name)), f"{name}_session")
        for key, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            assert [(x["name"], x["shape"]) for x in entry[key]] == [
                (x.name, x.shape) for x in values
            ]


@pytest.mark.parametrize("case", [CHUNKED, SINGLE_SHOT], ids=str)
def test_manifest_holds_geometry_batch_and_prefill_chunk(case: Case) -> None:
    manifest = Build.open(cases.built(case).directory).manifest
    assert manifest.geometry.layers == case.geometry.layers
    assert manifest.geometry.vote.options == case.geometry.vote.options
    assert (manifest.batch, manifest.prefill_chunk) == (case.batch, case.prefill_chunk)


def test_single_shot_build_has_no_compress_graph() -> None:
    graphs = set(cases.built(SINGLE_SHOT).manifest["graphs"])
    assert graphs == {"prefill", "decode", "baseline-prefill", "baseline-decode"}
