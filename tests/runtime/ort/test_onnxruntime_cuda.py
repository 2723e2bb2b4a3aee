"""ONNX Runtime on a GPU, over FAKES of CUDA and of ONNX Runtime's provider for it.

No GPU: the fakes run the same graphs on the CPU, at the addresses, and at the time, that our calls
name (tests/fakes).
"""

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphEntry, TensorSpec
from snapexport.errors import UserError
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.ort.backend import OnnxRuntimeBackend
from snapexport.runtime.ort.devices import PROVIDER as CUDA
from snapexport.runtime.ort.devices import Cuda
from snapexport.runtime.ort.session import bind
from snapexport.runtime.requests.llm import LLM
from tests.builds import build
from tests.fakes import onnxruntime_cuda
from tests.fakes.cuda import FakeCuda
from tests.fakes.onnxruntime_cuda import REAL, CudaSession, install
from tests.oracle import cases
from tests.runtime.downloads import (
    assert_downloads,
    assert_logits_go_with_the_executor,
    assert_same_answers,
    assert_top_tokens_replace_logits,
    samplings,
)
from tests.runtime.requests.traffic import assert_neighbours_change_nothing

SIZES: dict[str, Any] = {"L_max": 96, "L_recent": 16, "K": 12, "L_obs": 8, "batch": 3}
CHUNKS = {"prefill_chunk": 32, "decode_batches": (1, 2), "baseline": True}
BUILDS: dict[str, dict[str, Any]] = {
    "chunked": CHUNKS | {"dtype": "fp16"},
    "valid slots": CHUNKS | {"dtype": "fp16", "decode_attention": "valid"},
    "portable": CHUNKS | {"target": "portable"},
    "single shot": {"prefill_chunk": 96, "dtype": "fp16", "baseline": True},
    "top_tokens": CHUNKS | {"target": "portable", "top_tokens": 16},
}
"""The operator for attention of target onnxruntime has no fp32 on a GPU."""
IDENTITY = parser.parse_model(
    """<ir_version: 10, opset_import: ["": 24]>
    g (bfloat16[2,4] x) => (bfloat16[2,4] y) { y = Identity(x) }"""
).SerializeToString()
ZEROS = np.zeros(3, np.int64)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """The fakes; nothing of them is left over when an executor is gone."""
    fake = install(monkeypatch)
    yield fake
    gc.collect()
    assert not fake.device and not fake.pinned and not fake.streams


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Build]:
    folder = tmp_path_factory.mktemp("builds")
    checkpoint = cases.checkpoint("llama")
    return {n: build(checkpoint, folder / n, **SIZES, **BUILDS[n]) for n in BUILDS}


def on_gpu(built: Build, baseline: bool = False) -> Executor:
    executor = open_executor(built, backend="onnxruntime-cuda", baseline=baseline)
    assert isinstance(executor, Executor)
    return executor


def on_cpu(built: Build, baseline: bool = False) -> Executor:
    """The executor without fakes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort, "InferenceSession", REAL)
        return open_executor(built, backend="onnxruntime", baseline=baseline, threads=1)


def llms(built: Build, baseline: bool = False) -> list[LLM]:
    executors = on_gpu(built, baseline), on_cpu(built, baseline)
    return [LLM.from_executor(executor, max_num_batched_tokens=40) for executor in executors]


@pytest.mark.parametrize("baseline", [False, True], ids=["compressed", "full"])
@pytest.mark.parametrize("name", BUILDS)
def test_cuda_gives_the_cpus_tokens(
    gpu: FakeCuda, builds: dict[str, Build], name: str, baseline: bool
) -> None:
    assert_same_answers(*llms(builds[name], baseline))


def test_cuda_outputs_do_not_depend_on_neighbours(gpu: FakeCuda, builds: dict[str, Build]) -> None:
    assert_neighbours_change_nothing(*llms(builds["portable"]), count=24)


def test_a_cleared_slot_is_zeros(gpu: FakeCuda, builds: dict[str, Build]) -> None:
    executor = on_gpu(builds["portable"])
    executor.prefill_prompt(1, cases.prompt(30))
    executor.move(1, 2)
    executor.clear(2)
    executor.clear(1)
    gpu.run_queue()
    caches = [block for block in gpu.device.values() if len(block) >= 4096]
    assert caches and not any(block.any() for block in caches)


def test_all_sessions_share_a_stream_and_decode_is_captured(
    gpu: FakeCuda, builds: dict[str, Build]
) -> None:
    executor = on_gpu(builds["portable"])
    captured = {session.path.name for session in CudaSession.opened if session.captures}
    assert captured == {"decode.1.onnx", "decode.2.onnx", "decode.onnx"} and executor.captured
    assert {session.stream for session in CudaSession.opened} == gpu.streams
    assert len(CudaSession.opened) == 5


def test_a_decode_step_downloads_only_logits(gpu: FakeCuda, builds: dict[str, Build]) -> None:
    """Up go the inputs that the host writes, and nothing is copied within the GPU."""
    executor = on_gpu(builds["portable"])
    gpu.calls.clear()
    executor.decode(ZEROS, ZEROS, ZEROS)
    assert gpu.calls["cudaMemcpyAsync"] == 3 + 1 and gpu.calls["cudaStreamSynchronize"] == 1
    assert set(executor.decode_buffers) == {"input_ids", "position_ids", "prompt_length", "logits"}


def test_top_tokens_come_back_in_place_of_logits(gpu: FakeCuda, builds: dict[str, Build]) -> None:
    assert_top_tokens_replace_logits(gpu, on_gpu(builds["top_tokens"]))


@samplings
def test_only_requests_that_need_logits_download_them(
    gpu: FakeCuda, builds: dict[str, Build], sampling: dict[str, Any], rows: int
) -> None:
    assert_downloads(gpu, *llms(builds["top_tokens"]), sampling, rows)


def test_logits_cannot_be_read_after_close(gpu: FakeCuda, builds: dict[str, Build]) -> None:
    assert_logits_go_with_the_executor(on_gpu(builds["top_tokens"]))


def test_a_decode_graph_that_cannot_be_captured_runs_with_a_warning(
    gpu: FakeCuda, builds: dict[str, Build], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime_cuda, "refuses_capture", lambda path: True)
    with pytest.warns(RuntimeWarning, match="without a CUDA graph, and slower: This session") as w:
        executor = on_gpu(builds["portable"])
    assert not executor.captured and len(w) == 3
    assert executor.decode(ZEROS, ZEROS, ZEROS).logits.shape == (3, executor.limits.vocab_size)


def test_cuda_graph_capture_can_be_left_out(gpu: FakeCuda, builds: dict[str, Build]) -> None:
    build = builds["portable"]
    graphs = GraphSet.of(build, baseline=False)
    backend = OnnxRuntimeBackend(build, graphs, Cuda(), captures=False)
    executor = Executor(build.manifest, graphs, backend)
    assert not executor.captured and not any(session.captures for session in CudaSession.opened)


def test_closing_a_cuda_executor_frees_everything(gpu: FakeCuda, builds: dict[str, Build]) -> None:
    executor = on_gpu(builds["portable"])
    executor.close()
    executor.close()
    assert not gpu.device and not gpu.streams


def test_an_older_onnxruntime_is_not_trusted_to_capture(
    gpu: FakeCuda, builds: dict[str, Build], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "__version__", "1.30.2")
    with pytest.warns(RuntimeWarning, match=r"onnxruntime 1\.30\.2 is older than 1\.31"):
        assert not on_gpu(builds["single shot"]).captured


def test_operators_without_a_cuda_kernel_are_reported(
    gpu: FakeCuda, builds: dict[str, Build], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that cost a copy by a warning, and all of them where one asks."""
    monkeypatch.setattr(CudaSession, "leaves_to_cpu", frozenset({"TopK", "Less"}))
    with pytest.warns(RuntimeWarning, match="the CPU runs TopK of compress: ") as warned:
        found = on_gpu(builds["portable"]).backend.operators()
    assert len(warned) == 1
    assert found["compress"]["CPUExecutionProvider"].keys() == {"TopK", "Less"}
    assert found["decode"][CUDA]["MatMul"] == 15
    assert set(found) == {"decode", "decode.1", "decode.2", "prefill", "compress"}


def test_no_warning_if_cuda_runs_every_heavy_operator(
    gpu: FakeCuda, builds: dict[str, Build]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_gpu(builds["portable"])


def test_bf16_caches_are_bound_by_their_onnx_type_number(gpu: FakeCuda) -> None:
    """NumPy has no such type."""
    specs = [TensorSpec(name=name, dtype="bfloat16", shape=[2, 4]) for name in ("x", "y")]
    entry = GraphEntry(file="x.onnx", sha256="", inputs=specs[:1], outputs=specs[1:])
    device = Cuda()
    session = CudaSession(
        IDENTITY, ort.SessionOptions(), providers=[device.provider(False)], enable_fallback=0
    )
    buffers = {spec.name: device.memory.allocate(spec) for spec in specs}
    run = bind(session, entry, device.name, buffers)
    gpu.run_queue()
    gpu.bytes_at(buffers["x"].address, 16)[:] = np.arange(16)
    run()
    gpu.run_queue()
    assert list(gpu.bytes_at(buffers["y"].address, 16)) == list(range(16))


def failing(*_: Any, **__: Any) -> None:
    raise RuntimeError("CUDA error: out of memory")


Patch = pytest.MonkeyPatch
FAULTS: dict[str, tuple[Callable[[Patch], object], str, str]] = {
    "a full GPU": (lambda p: install(p, memory=10_000), "the GPU has no", "--batch"),
    "no driver": (lambda p: install(p, driver=False), "CUDA finds no GPU", ""),
    "a session that fails": (
        lambda p: p.setattr(CudaSession, "__init__", failing),
        "out of memory",
        "nvidia-smi",
    ),
    "no provider": (  # ONNX Runtime would go on with the CPU, after a line in its log
        lambda p: p.setattr(CudaSession, "loads_provider", False),
        "could not load its CUDAExecutionProvider",
        "nvidia-smi",
    ),
    "no cuda-python": (
        lambda p: p.setitem(sys.modules, "cuda.bindings.runtime", None),
        "'cuda' is not installed",
        "pip install 'snapexport[gpu]'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_gpu_that_cannot_be_used_is_an_error_with_a_hint(
    gpu: FakeCuda, builds: dict[str, Build], monkeypatch: Patch, fault: str
) -> None:
    spoil, message, hint = FAULTS[fault]
    spoil(monkeypatch)
    with pytest.raises(UserError, match=message) as refusal:
        on_gpu(builds["portable"])
    assert hint in refusal.value.hint


def test_an_onnxruntime_for_the_cpu_is_refused(builds: dict[str, Build]) -> None:
    if CUDA in ort.get_available_providers():
        pytest.skip("this is onnxruntime-gpu")
    with pytest.raises(UserError, match="has no CUDA provider") as refusal:
        on_gpu(builds["portable"])
    assert "snapexport[gpu]" in refusal.value.hint


def test_fp32_attention_on_cuda_and_bf16_on_the_cpu_are_refused(builds: dict[str, Build]) -> None:
    def changed(**update: Any) -> Build:
        manifest = builds["chunked"].manifest.model_copy(update=update)
        return Build(builds["chunked"].directory, manifest)

    changed(dtype="bf16").require_run(backend="onnxruntime-cuda")
    with pytest.raises(UserError, match="only 16-bit kernels on a GPU"):
        changed(dtype="fp32").require_run(backend="onnxruntime-cuda")
    with pytest.raises(UserError, match="a bf16 build is not supported on the CPU") as refusal:
        changed(dtype="bf16").require_run(backend="onnxruntime")
    assert "--backend onnxruntime-cuda" in refusal.value.hint


def test_threads_are_refused_on_cuda(builds: dict[str, Build]) -> None:
    with pytest.raises(
        UserError, match="--threads 2 is not supported with --backend onnxruntime-cuda"
    ):
        open_executor(builds["portable"], backend="onnxruntime-cuda", threads=2)


def test_decode_by_group_query_attention_is_one_launch(
    gpu: FakeCuda, builds: dict[str, Build]
) -> None:
    """The total length is a constant. The host would have to read a computed one."""
    assert on_gpu(builds["chunked"], baseline=True).captured
