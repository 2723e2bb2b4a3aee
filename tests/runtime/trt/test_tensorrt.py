"""TensorRT's backend over FAKES of CUDA and TensorRT: every layout answers as ONNX Runtime does.

No GPU and no TensorRT: the fakes run the same graphs at the addresses, and at the time, that our
calls name (tests/fakes).
"""

import gc
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.backend import DeviceError
from snapexport.runtime.engine.cuda import Device
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.fakes import tensorrt
from tests.fakes.cuda import FakeCuda
from tests.fakes.plans import entry_of, in_bf16, install, with_engines
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.runtime.downloads import (
    assert_downloads,
    assert_logits_go_with_the_executor,
    assert_same_answers,
    assert_top_tokens_replace_logits,
    samplings,
)
from tests.runtime.requests.traffic import assert_neighbours_change_nothing

CHUNKED = Case(target="tensorrt", baseline=True, decode_batches=(1, 2))
SINGLE_SHOT = Case(target="tensorrt", baseline=True, prefill_chunk=96)
TOP_TOKENS = replace(CHUNKED, top_tokens=16)
SLIDING = Case("gemma3", target="tensorrt", prefill_chunk=24)
LAYOUTS: dict[str, tuple[Case, bool]] = {
    "chunked": (CHUNKED, False),
    "chunked baseline": (CHUNKED, True),
    "single shot": (SINGLE_SHOT, False),
    "single shot baseline": (SINGLE_SHOT, True),
    "top_tokens": (TOP_TOKENS, False),
    "sliding": (SLIDING, False),
}
layouts = pytest.mark.parametrize(("case", "baseline"), LAYOUTS.values(), ids=LAYOUTS.keys())
ZEROS = np.zeros(3, np.int64)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return install(monkeypatch)


def build_of(case: Case, folder: Path, **plan: Any) -> Build:
    build = Build.open(cases.built(case).directory)
    return with_engines(build, sm_90=entry_of(build, folder, **plan))


def llms(case: Case, folder: Path, baseline: bool = False) -> tuple[LLM, LLM]:
    """On the fakes, and on ONNX Runtime."""
    build = build_of(case, folder)
    trt = open_executor(build, backend="tensorrt", baseline=baseline)
    ort = open_executor(build, backend="onnxruntime", baseline=baseline, threads=1)
    return LLM.from_executor(trt, max_num_batched_tokens=40), LLM.from_executor(
        ort, max_num_batched_tokens=40
    )


@layouts
def test_tensorrt_gives_onnxruntimes_tokens(
    gpu: FakeCuda, tmp_path: Path, case: Case, baseline: bool
) -> None:
    ours, theirs = llms(case, tmp_path, baseline)
    assert_same_answers(ours, theirs)
    assert ours.executor.captured


def test_tensorrt_outputs_do_not_depend_on_neighbours(gpu: FakeCuda, tmp_path: Path) -> None:
    assert_neighbours_change_nothing(*llms(CHUNKED, tmp_path), count=24)


def test_tensorrt_prefill_does_not_run_a_common_beginning_again(
    gpu: FakeCuda, tmp_path: Path
) -> None:
    """Four chunks of 24 or less; the last is off the grid and spoils the one that it overlaps."""
    llm = LLM.from_executor(open_executor(build_of(SLIDING, tmp_path), backend="tensorrt"))
    for prompt, chunks in ((cases.prompt(90), 4), ((*cases.prompt(90)[:60], *range(9, 39)), 2)):
        tensorrt.calls.clear()
        llm.generate(prompt, SamplingParams(max_tokens=1))
        assert tensorrt.calls.count(("run", "prefill")) == chunks


@pytest.mark.parametrize("case", [CHUNKED, SINGLE_SHOT], ids=["chunked", "single shot"])
def test_tensorrt_decode_step_is_one_launch_and_allocates_nothing(
    gpu: FakeCuda, tmp_path: Path, case: Case
) -> None:
    executor = open_executor(build_of(case, tmp_path), backend="tensorrt")
    before = gpu.calls.copy()
    first = executor.decode(ZEROS + 5, ZEROS, ZEROS + 1).logits.copy()
    assert gpu.calls - before == {"cudaGraphLaunch": 1, "cudaStreamSynchronize": 1}
    assert not np.array_equal(first, executor.decode(ZEROS + 6, ZEROS, ZEROS + 1).logits)
    for slot in range(3):
        executor.prefill_prompt(slot, cases.prompt(70, slot))
    grown = gpu.calls - before
    assert not {"cudaMalloc", "cudaMallocHost", "cudaFree", "cudaGraphInstantiate"} & grown.keys()


def test_top_tokens_come_back_in_place_of_logits(gpu: FakeCuda, tmp_path: Path) -> None:
    assert_top_tokens_replace_logits(gpu, open_executor(build_of(TOP_TOKENS, tmp_path)))


def test_logits_cannot_be_read_after_close(gpu: FakeCuda, tmp_path: Path) -> None:
    assert_logits_go_with_the_executor(open_executor(build_of(TOP_TOKENS, tmp_path)))


@samplings
def test_only_requests_that_need_logits_download_them(
    gpu: FakeCuda, tmp_path: Path, sampling: dict[str, Any], rows: int
) -> None:
    assert_downloads(gpu, *llms(TOP_TOKENS, tmp_path), sampling, rows)


def test_a_decode_step_that_cannot_be_captured_runs_with_a_warning(
    gpu: FakeCuda, tmp_path: Path
) -> None:
    build = build_of(CHUNKED, tmp_path, capturable=False)
    with pytest.warns(RuntimeWarning, match="decode runs without a CUDA graph"):
        executor = open_executor(build, backend="tensorrt")
    assert not executor.captured and not gpu.launchable and gpu.capturing is None
    params, prompt = SamplingParams(max_tokens=8, ignore_eos=True), cases.prompt(70)
    (expected,) = LLM.from_executor(
        open_executor(build, backend="onnxruntime", threads=1)
    ).generate(prompt, params)
    assert LLM.from_executor(executor).generate(prompt, params) == [expected]


def test_a_capture_ends_whatever_happens_in_it(gpu: FakeCuda) -> None:
    device = Device()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        device.capture(interrupted)
    assert gpu.capturing is None and not gpu.graphs
    device.synchronize()


def test_garbage_may_be_collected_during_a_capture(gpu: FakeCuda) -> None:
    """Another executor's memory: a finalizer frees it when Python likes."""
    device, address = Device(), gpu.cudaMalloc(16)[1]
    source, target = device.allocate(4), device.allocate(4)

    def work() -> None:
        assert gpu.cudaFree(address) == (gpu.cudaError_t.cudaSuccess,)
        device.copy(target, source, 4)

    device.capture(work)()
    device.synchronize()
    assert address not in gpu.device


@pytest.mark.parametrize("case", [CHUNKED, SINGLE_SHOT], ids=["chunked", "single shot"])
def test_clear_leaves_no_nan_of_a_broken_prompt(gpu: FakeCuda, tmp_path: Path, case: Case) -> None:
    """The neighbour goes on, and the next prompt in the same batch slot has its right answer."""
    ours, theirs = llms(case, tmp_path)
    for slot in (0, 1):
        feed_whole(ours, theirs, slot)
    break_slot(gpu, ours.executor, 1)
    step = (np.array([5, 0, 0]), np.array([70, 0, 0]), np.array([70, 0, 0]))
    assert np.isnan(ours.executor.decode(*step)[1].logits).all(), "nothing was broken"
    ours.executor.clear(1)
    expected = theirs.executor.decode(*step)[0].logits
    np.testing.assert_allclose(ours.executor.decode(*step)[0].logits, expected, atol=1e-4)
    params, prompt = SamplingParams(max_tokens=8, ignore_eos=True), cases.prompt(80)
    assert ours.generate([prompt] * 3, params) == theirs.generate([prompt] * 3, params)


def feed_whole(ours: LLM, theirs: LLM, slot: int) -> None:
    for llm in (ours, theirs):
        llm.executor.prefill_prompt(slot, cases.prompt(70, slot))


def break_slot(gpu: FakeCuda, executor: Executor, slot: int) -> None:
    """NaN in all that the slot's prompt left, as a model that overflows does."""
    executor.fill_slot()
    gpu.run_queue()
    shared = executor.prompt_cache.buffers.values() if executor.prompt_cache else ()
    for cache in (*executor.rows.buffers(slot), *shared):
        gpu.bytes_at(cache.address, cache.nbytes).fill(0xFF)


def test_new_gpu_memory_is_zeroed(
    gpu: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = build_of(CHUNKED, tmp_path)
    assert np.isfinite(
        open_executor(build, backend="tensorrt").decode(ZEROS, ZEROS, ZEROS).logits
    ).all()
    monkeypatch.setattr(Device, "zero", lambda *_: None)
    assert np.isnan(
        open_executor(build, backend="tensorrt").decode(ZEROS, ZEROS, ZEROS).logits
    ).any(), "the fake poisons nothing"


def test_closing_a_tensorrt_executor_frees_everything(gpu: FakeCuda, tmp_path: Path) -> None:
    executor = open_executor(build_of(CHUNKED, tmp_path), backend="tensorrt")
    assert gpu.device and gpu.launchable
    executor.close()
    executor.close()
    assert not (gpu.device or gpu.launchable or gpu.graphs or gpu.streams)
    with pytest.raises(DeviceError, match="the executor was closed"):
        executor.decode(ZEROS, ZEROS, ZEROS)
    with pytest.raises(DeviceError, match="the executor was closed"):
        executor.clear(0)
    del executor
    gc.collect()
    assert not gpu.pinned


def test_a_dropped_executor_frees_its_memory(gpu: FakeCuda, tmp_path: Path) -> None:
    logits = (
        open_executor(build_of(CHUNKED, tmp_path), backend="tensorrt")
        .decode(ZEROS, ZEROS, ZEROS)
        .logits
    )
    gc.collect()
    assert not gpu.device and len(gpu.pinned) == 1 and np.isfinite(logits).all()
    del logits
    assert not gpu.pinned


def test_no_graph_writes_another_graphs_outputs(gpu: FakeCuda, tmp_path: Path) -> None:
    """But compress reads what prefill left, and they all share one workspace."""
    executor = open_executor(build_of(CHUNKED, tmp_path), backend="tensorrt")
    prefill, compress, decode = (
        {c._addresses[n] for n in c.engine._outputs}
        for c in (executor.backend._contexts[n] for n in ("prefill", "compress", "decode"))
    )
    assert not prefill & compress and not prefill & decode and not compress & decode
    assert len({context._workspace for context in executor.backend._contexts.values()}) == 1


def test_bf16_caches_are_bytes_that_the_host_never_reads(gpu: FakeCuda, tmp_path: Path) -> None:
    """ONNX Runtime can't calculate in bf16: only what surrounds the plans runs here."""
    build = build_of(replace(CHUNKED, share_weights=False), tmp_path, bf16=True)
    llm = LLM.from_executor(open_executor(in_bf16(build)))
    (completion,) = llm.generate([cases.prompt(40)], SamplingParams(max_tokens=3, ignore_eos=True))
    assert completion.token_ids == (0, 0, 0)  # the fake leaves the logits zero


def test_loading_a_tensorrt_build_warns_of_nothing(gpu: FakeCuda, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_executor(build_of(CHUNKED, tmp_path), backend="tensorrt")
