"""Integers of a checkpoint in a build: each form against its definition, and whole builds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from snapexport.builder.progress import Silent
from snapexport.exporter.weights.forms import parts
from snapexport.exporter.weights.forms.choice import Exact
from snapexport.exporter.weights.forms.integers import Form, IntegerRows, IntegerWeight
from snapexport.exporter.weights.forms.parts import dequantize
from snapexport.files.safetensors import read_header
from snapexport.graphs.markers import BLOCK_GATHER, BLOCK_MATMUL, TRACE_DOMAIN
from snapexport.graphs.targets.weights import BlockGather, MatMulNBits
from snapexport.runtime.requests.llm import LLM
from tests.builds import build
from tests.exporter import gguf_files
from tests.exporter.weights.test_weights import weights_of
from tests.graphs import bodies
from tests.graphs.test_experts import exported

FORMS = [
    Form(bits, block, zero, minima, ordered)
    for bits in (4, 8)
    for block in (16, 32, 64, 128, 256)
    for zero, minima in ((1 << bits - 1, False), (None, False), (0, True))
    for ordered in (False, True)
]


@dataclass(frozen=True)
class Random(IntegerWeight):
    """A weight of a form, of random numbers."""

    size: tuple[int, int]
    made: Form
    seed: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    @property
    def form(self) -> Form:
        return self.made

    @property
    def order(self) -> NDArray[np.int64] | None:
        rng = np.random.default_rng(self.seed)
        return rng.permutation(self.shape[1]) if self.form.ordered else None

    def rows(self, most: int) -> Iterator[IntegerRows]:
        rng, (rows, columns), form = np.random.default_rng(self.seed + 1), self.size, self.made
        blocks, top = form.count(columns), 1 << form.bits

        def some(high: int) -> NDArray[np.uint8]:
            return rng.integers(0, high, (rows, blocks)).astype(np.uint8)

        yield IntegerRows(
            rng.integers(0, top, self.shape).astype(np.uint8),
            rng.standard_normal((rows, blocks), np.float32),
            some(top) if form.zero is None else None,
            rng.standard_normal((rows, blocks), np.float32) if form.minima else None,
        )

    @property
    def values(self) -> NDArray[Any]:
        return np.concatenate(list(self.blocks(1, 1 << 20))).reshape(self.shape)


def stored(weight: Random, folder: Path) -> dict[str, NDArray[Any]]:
    """The parts of a weight, by their endings."""
    found = {}
    for writer in parts.write("w", weight, "F32", folder, lambda _: None):
        span = read_header(writer.file)[writer.name]
        dtype = {"U8": np.uint8, "I8": np.int8, "F32": np.float32, "I64": np.int64}[span.dtype]
        one = np.memmap(span.file, dtype, "r", span.offset, shape=span.shape)
        found[writer.name.removeprefix("w.")] = np.array(one)
    return found


def run(
    marker: str,
    weight: Random,
    of_parts: dict[str, NDArray[Any]],
    first: NDArray[Any],
    *,
    openvino: bool = False,
    **attributes: int,
) -> NDArray[np.float32]:
    """The output of a graph of one marker, whose parts are its constants."""
    form = weight.form
    names = (f"int{form.bits}", "scales", "zeros", "minima", "order")
    inputs: list[gs.Tensor] = [gs.Variable("first", first.dtype, first.shape)]
    for name in names[: 4 if marker == BLOCK_GATHER else 5]:
        one = of_parts.get(name)
        inputs.append(gs.Variable.empty() if one is None else gs.Constant(name, one))
    rows, columns = weight.shape
    width = rows if marker == BLOCK_MATMUL else columns
    output = gs.Variable("output", np.float32, (*first.shape[: 1 if width == rows else 2], width))
    sizes = {"bits": form.bits, "block_size": form.block}
    sizes |= attributes | ({"N": rows, "K": columns} if marker == BLOCK_MATMUL else {})
    node = gs.Node(marker, "marked", sizes, inputs, [output], domain=TRACE_DOMAIN)
    graph = gs.Graph([node], inputs[:1], [output], opset=24)
    for one in (MatMulNBits(openvino), BlockGather()):
        one.apply(graph)
    return bodies.run(exported(graph), {"first": first})["output"]


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    rows=st.integers(1, 40),
    cut=st.integers(0, 15),
    seed=st.integers(0, 999),
)
def test_products_read_every_form_as_defined(
    tmp_path_factory: pytest.TempPathFactory, form: Form, rows: int, cut: int, seed: int
) -> None:
    """Of the unit matrix, whose rows 8 bits hold exactly. The last block may be cut off."""
    columns = 2 * form.block + (0 if form.minima else form.block - cut)
    weight = Random((rows, columns), form, seed)
    of_parts = stored(weight, tmp_path_factory.mktemp("parts"))
    got = run(BLOCK_MATMUL, weight, of_parts, np.eye(columns, dtype=np.float32))
    largest = np.abs(weight.values).max()
    np.testing.assert_allclose(got.T, weight.values, atol=1e-5 * largest)


@pytest.mark.parametrize("openvino", [False, True])
@pytest.mark.parametrize("form", [Form(4, 32, 0, minima=True), Form(8, 32, None)])
def test_exact_products_lose_nothing_beside_massive_values(
    form: Form, tmp_path: Path, *, openvino: bool
) -> None:
    """A block's largest value decides how all are rounded: here it is a thousand times the rest."""
    weight = Random((40, 4 * form.block), form, 0)
    x = np.random.default_rng(0).standard_normal((2, weight.shape[1]), np.float32)
    x[:, 5::32] = 1000
    x[1, : form.block] = 0
    exact, of_parts = x.astype(np.float64) @ weight.values.T, stored(weight, tmp_path)
    lost = [
        np.abs(run(BLOCK_MATMUL, weight, of_parts, x, openvino=openvino, exact=one) - exact).max()
        for one in (0, 1)
    ]
    assert lost[1] < 2e-6 * np.abs(exact).max() + lost[0] / 100


def test_keys_and_values_of_few_heads_the_head_and_the_last_projection_are_exact() -> None:
    chosen = Exact(("head", "last"))
    for name, rows, wanted in (
        ("0.k_proj.weight", 32, True),
        ("0.v_proj.weight", 64, False),
        ("0.q_proj.weight", 32, False),
        ("last", 64, True),
    ):
        assert chosen.of(name, Random((rows, 64), FORMS[0], 0)) == wanted, name


@settings(max_examples=30, deadline=None)
@given(form=st.sampled_from([one for one in FORMS if not one.ordered]), seed=st.integers(0, 999))
def test_lookups_read_every_form_as_defined(
    form: Form, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weight = Random((9, 3 * form.block), form, seed)
    of_parts = stored(weight, tmp_path_factory.mktemp("parts"))
    indices = np.array([[3, 8, 0], [3, 5, 1]])
    got = run(BLOCK_GATHER, weight, of_parts, indices)
    largest = np.abs(weight.values).max()
    np.testing.assert_allclose(got, weight.values[indices], atol=1e-5 * largest)


@settings(max_examples=30, deadline=None)
@given(form=st.sampled_from(FORMS), seed=st.integers(0, 999))
def test_parts_are_read_back_as_numbers(
    form: Form, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weight = Random((5, 2 * form.block), form, seed)
    of_parts = stored(weight, tmp_path_factory.mktemp("parts"))
    tensors = {f"w.{name}": torch.from_numpy(one.copy()) for name, one in of_parts.items()}
    got = dequantize(tensors)
    assert got.keys() == {"w"}
    largest = np.abs(weight.values).max()
    np.testing.assert_allclose(got["w"].numpy(), weight.values, atol=1e-5 * largest)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_gguf_file_keeps_its_integers_by_default(name: str, kind: str, tmp_path: Path) -> None:
    """Logits are those of the dequantized build, but for activations in 8 bits."""
    gguf = pytest.importorskip("gguf")
    file = gguf_files.make(name, tmp_path, gguf.GGMLQuantizationType[kind])
    options: dict[str, Any] = {"L_max": 64, "prefill_chunk": 32, "policy": "full"}
    kept = build(file, tmp_path / "kept", **options)
    whole = build(file, tmp_path / "whole", **options, weights="dequantize")
    assert (kept.manifest.quantization, whole.manifest.quantization) == ("keep", None)
    assert kept.manifest.bits_per_weight < 11 < 32 == whole.manifest.bits_per_weight
    expected = weights_of(whole)
    for weight, one in dequantize(weights_of(kept)).items():
        torch.testing.assert_close(one, expected[weight], rtol=0, atol=2e-7)
    prompt = np.random.default_rng(0).integers(3, 250, 50).tolist()
    got, exact = (
        LLM(one.directory).executor.prefill_prompt(0, prompt).logits.copy() for one in (kept, whole)
    )
    assert 0 < np.abs(got - exact).mean() < 0.08 * exact.std()


@dataclass
class Noted(Silent):
    """The notes of a build."""

    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, []),
        ({"target": "portable"}, ["are dequantized to fp32, integers in the checkpoint"]),
        ({"weights": "dequantize"}, ["are dequantized to fp32, integers in the checkpoint"]),
        ({"weights": "int4"}, ["are rounded a second time: the checkpoint has integers in"]),
        ({"weights": "int8"}, []),
    ],
)
def test_what_becomes_of_integers_is_reported(
    flags: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf")
    file = gguf_files.make("llama", tmp_path, gguf.GGMLQuantizationType.Q8_0)
    noted = Noted()
    options: dict[str, Any] = {"L_max": 64, "prefill_chunk": 32, "policy": "full"}
    build(file, tmp_path / "b", progress=noted, **options | flags)
    assert len(noted.notes) == len(expected)
    assert all(one in note for note, one in zip(noted.notes, expected, strict=True))
