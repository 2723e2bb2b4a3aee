"""Functions of experts, ONNX Runtime's MoE and stacked weights, against their definitions."""

import json
import math
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config

from snapexport.errors import UserError
from snapexport.exporter.model.models import parameters
from snapexport.exporter.model.probe import load_decoder, look
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.read.config_fields import require_groups
from snapexport.exporter.read.families import family_of
from snapexport.exporter.weights.arranged import InTurn, Stack
from snapexport.exporter.weights.derived import with_derived
from snapexport.exporter.weights.place import place
from snapexport.files.safetensors import TensorSpan, header, read_header
from snapexport.graphs.functions import EXPERTS
from snapexport.graphs.markers import EXPERTS as EXPERTS_MARKER
from snapexport.graphs.markers import TRACE_DOMAIN
from snapexport.graphs.targets.experts import ComposedExperts, MoE, block_rows, most_blocks
from tests.builds import build
from tests.graphs import bodies
from tests.graphs.bodies import exported
from tests.graphs.test_functions import run
from tests.oracle import checkpoints

Array = NDArray[Any]
HIDDEN, WIDTH = 16, 8


def defined(
    feeds: dict[str, Array], alpha: float = 1.0, beta: float = 0.0, limit: float = 3e38
) -> Array:
    """Row by row and choice by choice, in float64."""
    states = feeds["hidden_states"].astype(np.float64)
    output = np.zeros_like(states)
    for row, choices in enumerate(feeds["index"]):
        for at, expert in enumerate(choices):
            product = feeds["gate_up"][expert] @ states[row]
            if "gate_up_bias" in feeds:
                product = product + feeds["gate_up_bias"][expert]
            gate, up = np.minimum(product[0::2], limit), product[1::2].clip(-limit, limit)
            out = feeds["down"][expert] @ (gate / (1 + np.exp(-alpha * gate)) * (up + beta))
            if "down_bias" in feeds:
                out = out + feeds["down_bias"][expert]
            output[row] += feeds["weights"][row, at] * out
    return output


def drawn(rows: int, k: int, experts: int, seed: int = 0, biased: bool = False) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    feeds = {
        "hidden_states": normal(rows, HIDDEN),
        "index": np.stack([rng.permutation(experts)[:k] for _ in range(rows)]),
        "weights": rng.random((rows, k)).astype(np.float32),
        "gate_up": normal(experts, 2 * WIDTH, HIDDEN) / 4,
        "down": normal(experts, HIDDEN, WIDTH) / 3,
    }
    if biased:
        feeds |= {"gate_up_bias": normal(experts, 2 * WIDTH), "down_bias": normal(experts, HIDDEN)}
    return feeds


def computed(name: str, feeds: dict[str, Array], **activation: float) -> Array:
    attributes: dict[str, Any] = {"alpha": 1.0, "beta": 0.0, "limit": 3e38} | activation
    if name != "ExpertsGathered":
        (rows, k), experts = feeds["index"].shape, len(feeds["down"])
        block = block_rows(rows, k, experts)
        attributes |= {"block": [block], "blocks": [most_blocks(rows, k, experts, block)]}
    (output,) = run(name, feeds, attributes)
    return output


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize(
    ("rows", "k", "experts"), [(1, 1, 1), (1, 3, 8), (5, 1, 4), (4, 4, 4), (33, 2, 8), (9, 3, 64)]
)
def test_functions_of_experts_equal_their_definition(
    name: str, rows: int, k: int, experts: int
) -> None:
    feeds = drawn(rows, k, experts)
    np.testing.assert_allclose(computed(name, feeds), defined(feeds), atol=2e-5)


@pytest.mark.parametrize("name", EXPERTS)
def test_functions_of_experts_with_biases_and_clipped_gates_equal_their_definition(
    name: str,
) -> None:
    feeds, activation = drawn(7, 2, 5, biased=True), {"alpha": 1.7, "beta": 1.0, "limit": 0.8}
    got = computed(name, feeds, **activation)
    np.testing.assert_allclose(got, defined(feeds, **activation), atol=2e-5)


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_may_be_chosen_by_all_rows_or_none_and_with_weights_of_zero(name: str) -> None:
    feeds = drawn(40, 2, 16)
    feeds["index"][:] = [3, 9]
    feeds["weights"][:, 1] = 0
    feeds["weights"][5] = 0
    got = computed(name, feeds)
    np.testing.assert_allclose(got, defined(feeds), atol=2e-5)
    assert not got[5].any()


OF = {
    "swish": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


def shaped(feeds: dict[str, Array], activation: str, gated: bool) -> Array:
    """The definition with another function, in float64."""
    output = np.zeros(feeds["hidden_states"].shape)
    for row, choices in enumerate(feeds["index"]):
        for at, expert in enumerate(choices):
            product = feeds["gate_up"][expert] @ feeds["hidden_states"][row].astype(np.float64)
            made = OF[activation](product[0::2]) * product[1::2] if gated else product
            out = feeds["down"][expert] @ (made if gated else OF[activation](made))
            output[row] += feeds["weights"][row, at] * out
    return output


@pytest.mark.parametrize("every_block", [False, True])
@pytest.mark.parametrize(("rows", "k"), [(1, 2), (40, 2)])
@pytest.mark.parametrize(("activation", "gated"), [*product(OF, (False, True))])
def test_experts_of_any_function_equal_their_definition(
    activation: str, gated: bool, rows: int, k: int, every_block: bool
) -> None:
    feeds = drawn(rows, k, 8)
    if not gated:
        feeds["gate_up"] = feeds["gate_up"][:, :WIDTH]
    graph = marked(feeds, activation=activation, gated=int(gated))
    MoE().apply(graph)
    ComposedExperts(every_block).apply(graph)
    np.testing.assert_allclose(run_graph(graph, feeds), shaped(feeds, activation, gated), atol=2e-5)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 200), st.integers(1, 6), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_blocks_suffice_for_any_choice(rows: int, k: int, more: int, seed: int) -> None:
    experts, rng = k + more, np.random.default_rng(seed)
    index = np.stack([rng.permutation(experts)[:k] for _ in range(rows)])
    if seed % 2:
        index[:] = index[0]
    block = block_rows(rows, k, experts)
    needed = sum(-(-int(n) // block) for n in np.bincount(index.ravel(), minlength=experts))
    assert needed <= most_blocks(rows, k, experts, block)


@pytest.mark.parametrize("biased", [False, True])
def test_moe_gives_any_routing_its_own_weights(biased: bool) -> None:
    """Weights that add up to more and less than 1, and zeros."""
    feeds = drawn(6, 3, 8, biased=biased)
    feeds["weights"] *= 5
    feeds["weights"][0, 1:] = 0
    feeds["weights"][1] = 0
    graph = marked(feeds, alpha=1.7, beta=1.0, limit=0.8)
    MoE().apply(graph)
    got = run_graph(graph, feeds)
    np.testing.assert_allclose(got, defined(feeds, alpha=1.7, beta=1.0, limit=0.8), atol=5e-5)
    assert not got[1].any()


def marked(feeds: dict[str, Array], operator: str = EXPERTS_MARKER, **attributes: Any) -> gs.Graph:
    """A graph of one marker."""
    inputs = [gs.Variable(name, one.dtype, one.shape) for name, one in feeds.items()]
    output = gs.Variable("output", np.float32, feeds["hidden_states"].shape)
    attributes = {
        **{"alpha": 1.0, "beta": 0.0, "limit": 0.0, "activation": "swish", "gated": 1},
        **attributes,
    }
    marker = gs.Node(operator, "experts", attributes, inputs, [output], domain=TRACE_DOMAIN)
    return gs.Graph([marker], inputs, [output], opset=24)


def run_graph(graph: gs.Graph, feeds: dict[str, Array]) -> Array:
    return bodies.run(exported(graph), feeds)["output"]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("qwen3-moe", tmp_path_factory.mktemp("experts") / "apart")


def placed(model: Path, out: Path, dtype: Any = "fp32") -> dict[str, Array]:
    """The stacked weights of a checkpoint, written as a build has them."""
    checkpoint = open_checkpoint(model)
    derived = with_derived(checkpoint, load_decoder(checkpoint))
    names = sorted(set(derived.tensors) - set(checkpoint.tensors))
    made = place(derived, names, dtype, out, lambda _: None)
    return {name: load_file(span.file)[name] for name, span in made.tensors.items()}


def test_stacks_of_experts_hold_gates_and_ups_in_turn(apart: Path, tmp_path: Path) -> None:
    stored, found = load_file(apart / "model.safetensors"), placed(apart, tmp_path / "w")
    assert {name.rpartition(".")[2] for name in found} == {"gate_up", "down"}
    assert len(found) == 2 * 3
    for name, stack in found.items():
        stem = name.rpartition(".")[0]
        for expert, matrix in enumerate(stack):
            one = {p: stored[f"{stem}.{expert}.{p}_proj.weight"] for p in ("gate", "up", "down")}
            if name.endswith("down"):
                assert np.array_equal(matrix, one["down"])
            else:
                assert np.array_equal(matrix[0::2], one["gate"])
                assert np.array_equal(matrix[1::2], one["up"])


def test_a_checkpoint_with_stacks_gives_the_same_weights(apart: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(apart)
    model.save_pretrained(tmp_path / "stacked", save_original_format=False)
    assert any(
        n.endswith("gate_up_proj") for n in read_header(tmp_path / "stacked" / "model.safetensors")
    )
    one, other = placed(apart, tmp_path / "a"), placed(tmp_path / "stacked", tmp_path / "b")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    built = build(tmp_path / "stacked", tmp_path / "build", L_max=64, prefill_chunk=32)
    assert built.manifest.model.architecture == "Qwen3MoeForCausalLM"


def test_stack_of_parts_in_other_dtypes_is_fp32(tmp_path: Path) -> None:
    one, other = np.ones((2, 4), np.float32) / 3, np.ones((2, 4), np.float16) / 7
    save_file({"one": one, "other": other}, tmp_path / "two.safetensors")
    spans = read_header(tmp_path / "two.safetensors")
    stack = Stack((InTurn((spans["one"], spans["other"])),) * 2)
    assert (stack.dtype, stack.shape, stack.nbytes) == ("F32", (2, 4, 4), 128)
    values = np.concatenate(list(stack.blocks(4, 8))).reshape(stack.shape)
    assert np.array_equal(values[:, 0::2], np.stack([one, one]))
    assert np.array_equal(values[:, 1::2], np.stack([other, other]).astype(np.float32))


EXPERT = "model.layers.0.mlp.experts.7"


def broken(apart: Path, out: Path, change: Any) -> Path:
    tensors = load_file(apart / "model.safetensors")
    change(tensors)
    out.mkdir()
    save_file(tensors, out / "model.safetensors")
    (out / "config.json").write_bytes((apart / "config.json").read_bytes())
    return out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop(f"{EXPERT}.up_proj.weight"), "lacks 1 tensors.*7.up_proj"),
        (lambda t: t.pop("model.layers.2.mlp.gate.weight"), "lacks 1 tensors.*mlp.gate"),
        (
            lambda t: t.update({f"{EXPERT}.down_proj.weight": np.ones((64, 31), np.float32)}),
            r"experts.7.down_proj.weight has shape \[64, 31\], config.json wants \[64, 32\]",
        ),
    ],
)
def test_missing_and_misshapen_experts_are_refused(
    apart: Path, tmp_path: Path, change: Any, said: str
) -> None:
    model = broken(apart, tmp_path / "m", change)
    with pytest.raises(UserError, match=said) as raised:
        build(model, tmp_path / "b", L_max=64, prefill_chunk=32)
    assert raised.value.hint


def sparse(file: Path, rows: int, written: int = 0) -> TensorSpan:
    """A bf16 matrix [rows,1024] in a file that is a hole from the row `written` on."""
    shape = (rows, 1024)
    with file.open("wb") as out:
        out.write(header({"matrix": ("BF16", shape)}, (4096, 0)))
        out.write(b"\x80\x3f" * (1024 * written))
        out.truncate(out.tell() + 2048 * (rows - written))
    return read_header(file)["matrix"]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_experts_of_a_sparse_checkpoint_stay_holes(dtype: Any, tmp_path: Path) -> None:
    gate, up = (sparse(tmp_path / name, 32768, written=8) for name in ("gate", "up"))
    hollow = InTurn((sparse(tmp_path / "g", 32768), sparse(tmp_path / "u", 32768)))
    stack = Stack((hollow, InTurn((gate, up)), hollow))
    checkpoint = Checkpoint(tmp_path, {}, {}, {"stack": stack})
    made = place(checkpoint, ["stack"], dtype, tmp_path / "w", lambda _: None)
    file, itemsize = made.tensors["stack"].file, {"bf16": 2, "fp32": 4}[dtype]
    whole = 3 * 65536 * 1024 * itemsize
    assert file.stat().st_size == made.tensors["stack"].offset + whole
    assert file.stat().st_blocks * 512 < whole / 8
    assert made.hashes[file] is None
    with safe_open(file, "pt") as opened:
        rows = opened.get_slice("stack")[1, :17].float()
    assert rows[:16].eq(1).all() and not rows[16].any()


def test_a_routers_bias_is_a_tensor_of_the_checkpoint() -> None:
    config = DeepseekV3Config(
        num_hidden_layers=4,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        hidden_size=64,
        moe_intermediate_size=32,
    )
    found = parameters(look(config, family_of("", config.model_type)))
    assert found["model.layers.3.mlp.gate.e_score_correction_bias"] == (8,)
    assert not any("inv_freq" in name for name in found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than the 8 experts"),
        ({"hidden_act": "mish"}, "experts .* compute a formula that no graph has"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
    ],
)
def test_configs_whose_experts_no_graph_computes_are_refused(
    apart: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    model = broken(apart, tmp_path / "m", lambda _: None)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UserError, match=said):
        build(model, tmp_path / "b", L_max=64, prefill_chunk=32)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_group": None}, "topk_group 2 of n_group None"),
        ({"topk_group": 5}, "topk_group 5 of n_group 4"),
        ({"n_group": 5}, "16 experts are not 5 groups"),
        ({"n_group": 16}, "16 experts are not 16 groups of 2 or more"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than 2 groups of 4 experts"),
    ],
)
def test_groups_that_no_router_can_choose_from_are_refused(
    changes: dict[str, Any], said: str
) -> None:
    fits = {"n_routed_experts": 16, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}
    require_groups(SimpleNamespace(**fits))
    with pytest.raises(UserError, match=said):
        require_groups(SimpleNamespace(**(fits | changes)))


def test_an_unknown_router_is_refused() -> None:
    with pytest.raises(UserError, match="topk_method is 'best'"):
        require_groups(SimpleNamespace(topk_method="best"))
