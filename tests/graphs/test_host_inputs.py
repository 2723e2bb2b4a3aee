"""What a GPU's operators read from the host is never calculated on the GPU (on_the_host).

The graphs are looked at as the runtime opens them there, with small constants folded.
"""

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from snapexport.runtime.ort.devices import Cuda
from snapexport.runtime.ort.session import session_options
from tests.oracle import cases
from tests.oracle.cases import Case

HOST_INPUTS = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "GroupQueryAttention": (6,),
    "Loop": (0, 1),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Tile": (1,),
    "TopK": (1,),
}
"""Inputs that kernels of ONNX Runtime's CUDA provider take from the host."""
OF_THE_HOST = ("Shape", "Size", "BitwiseOr")
"""Operators whose results are there. It calculates there too what needs nothing but these."""

CASES = [
    Case(extend=True, short_chunks=(8,), cache_dtype="int8"),
    Case(pool="max", group="max"),
    Case(vote_queries="repeat", budget="pyramid"),
    Case(prefill_chunk=8, prefill_budget=24, tokens_per_step=4),
    Case("deepseek-v3"),
    Case("qwen3-moe", weights="int4"),
    *(
        pytest.param(Case(name), marks=pytest.mark.slow)
        for name in ("qwen3_next", "gpt-oss", "gemma3")
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gpus_operators_wait_for_no_value_of_the_gpu(case: Case, tmp_path: Path) -> None:
    build = cases.build_of(case)
    for graph in build.manifest.graphs:
        assert list(awaited(build.graph(graph), tmp_path / f"{graph}.onnx")) == [], graph


def awaited(path: Path, opened: Path) -> Iterator[str]:
    """Inputs of the host which the GPU calculates, each with its operator and where it is from."""
    options = session_options(1, False, Cuda.settings)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(opened)
    ort.InferenceSession(path, options, disabled_optimizers=Cuda.left_out)
    graph = onnx.load(opened, load_external_data=False).graph
    fixed = {one.name for one in graph.initializer} | {"", *(one.name for one in graph.input)}
    host: set[str] = set()
    maker: dict[str, str] = {}
    for node in graph.node:
        for at in HOST_INPUTS.get(node.op_type, ()):
            name = node.input[at] if at < len(node.input) else ""
            if name not in fixed | host:
                yield f"{node.op_type} reads {name} of {maker[name]}"
        small = host.intersection(node.input) and all(one in fixed | host for one in node.input)
        maker |= dict.fromkeys(node.output, node.op_type)
        if node.op_type == "Constant":
            fixed.update(node.output)
        elif node.op_type in OF_THE_HOST or small:
            host.update(node.output)
