"""Graphs that take their weights as inputs give what graphs with weights of their own give."""

import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
from safetensors.numpy import load_file

from snapexport.builder import build
from snapexport.contract.build_directory import Build, weight_inputs
from snapexport.errors import UserError
from snapexport.runtime.engine.host_memory import HostMemory
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.engine.shared_weights import load_weights
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees

OPTIONS: dict[str, Any] = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24}


@pytest.mark.parametrize(
    "case",
    [
        Case(share_weights=True),
        Case("gemma3", target="tensorrt", prefill_chunk=96, share_weights=True),
        Case("llama-tied", target="portable", share_weights=True),
    ],
    ids=str,
)
def test_graphs_with_shared_weights_agree_with_the_oracle(case: Case) -> None:
    assert_agrees(case, (25, 96), steps=12)


@pytest.fixture(scope="module")
def shared(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("shared") / "b"
    return build(checkpoint, out, share_weights=True, baseline=True, batch=2, **OPTIONS)


@pytest.mark.parametrize("chunk", [24, 64])
def test_generated_tokens_are_those_of_the_same_build_without_sharing(
    checkpoint: Path, tmp_path: Path, chunk: int
) -> None:
    """In chunks and in a single shot; four requests in two batch slots."""
    options = OPTIONS | {"prefill_chunk": chunk, "batch": 2}
    texts = []
    for shares in (False, True):
        made = build(checkpoint, tmp_path / str(shares), share_weights=shares, **options)
        prompts = [list(cases.prompt(length)) for length in (5, 24, 40, 60)]
        outputs = LLM(made.directory).generate(prompts, SamplingParams(max_tokens=9))
        texts.append([one.token_ids for one in outputs])
    assert texts[0] == texts[1]


def test_matrices_are_inputs_and_no_graph_holds_one(shared: Build) -> None:
    files = [load_file(shared.directory / one.file) for one in shared.manifest.weights]
    tensors = {name: tensor for file in files for name, tensor in file.items()}
    matrices = {name: list(one.shape) for name, one in tensors.items() if one.ndim > 1}
    for name in shared.manifest.graphs:
        model = onnx.load(shared.graph(name), load_external_data=False)
        assert all(len(one.dims) < 2 for one in model.graph.initializer if one.external_data)
        weights = {one.name: one.shape for one in weight_inputs(shared.manifest, name)}
        assert weights == ({} if name == "compress" else matrices)


def test_weights_are_mapped_once_for_all_graphs(shared: Build) -> None:
    executor = open_executor(shared, threads=1)
    decodes = [bound.buffers for bound in executor._decode.graphs.values()]
    (prefill,) = executor._takers["chunk"]._graphs[24].values()
    weights = load_weights(shared, ["decode"], HostMemory())
    assert weights
    for name in weights:
        assert {one[name].address for one in decodes} == {prefill.buffers[name].address}


def test_targets_whose_graphs_hold_weights_share_them_by_default(
    checkpoint: Path, tmp_path: Path
) -> None:
    shares = {}
    for target in ("onnxruntime", "tensorrt", "tensorrt-rtx"):
        made = build(checkpoint, tmp_path / target, target=target, **OPTIONS)
        shares[target] = made.manifest.graph_options.share_weights
    assert shares == {"onnxruntime": False, "tensorrt": True, "tensorrt-rtx": True}


def test_a_weight_of_another_shape_is_refused(shared: Build, tmp_path: Path) -> None:
    shutil.copytree(shared.directory, tmp_path / "b")
    made = Build.open(tmp_path / "b")
    spec = weight_inputs(made.manifest, "decode")[0]
    spec.shape[0] += 1
    with pytest.raises(UserError, match="its graphs want"):
        load_weights(made, ["decode"], HostMemory())
