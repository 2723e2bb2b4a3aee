"""The measurements: decode by context, throughput at equal memory, and what compression adds.

Times are of `engine.decode` and `engine.prefill`: inputs up, the graph, top_tokens back to the
host, and no sampling. Decode's floor is the bytes that a step can't avoid by the bandwidth of a
copy within the device, read and written bytes counted, as probed in the same command.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from snapexport.bench.contender import chunks
from snapexport.bench.costs import Costs
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import TensorSpec
from snapexport.runtime.executor import Executor
from snapexport.runtime.open_executor import BackendName, open_executor
from snapexport.runtime.ort.backend import OnnxRuntimeBackend
from snapexport.runtime.ort.devices import Device

from . import builds
from .results import Results, Row, missing
from .setting import Setting

WARM_UP = 3
"""Steps: memory is touched, a CUDA graph is captured."""
PROBES = 10


class Bench:
    """One command's measurements. open_device: a new device for the probe."""

    def __init__(
        self,
        setting: Setting,
        folder: Path,
        results: Results,
        backend: BackendName,
        open_device: Callable[[], Device],
        tell: Callable[[str], None],
    ) -> None:
        self._setting, self._folder, self._results = setting, folder, results
        self._backend: BackendName = backend
        self._open_device, self._tell = open_device, tell
        self._rng = np.random.default_rng(0)
        self._bandwidth = 0.0

    def context(self) -> None:
        """(a) One slot, either cache, from short contexts to L_max."""
        for cache, baseline in (("snapstream", False), ("full", True)):
            contexts = self._setting.contexts
            self._decode("context", builds.MAIN, cache, baseline, contexts)

    def equal_memory(self) -> None:
        """(b) As many slots as the same bytes of decode caches hold; none is left out silently."""
        self._results.set("left_out", self._left_out())
        self._decode("equal-memory", builds.SNAPSTREAM, "snapstream", False, self._setting.equal)
        for context in self._setting.fitting:
            self._decode("equal-memory", builds.full(context), "full", False, (context,))

    def _left_out(self) -> list[str]:
        """A line for each full cache of which the budget holds not even one."""
        setting = self._setting
        return [
            f"full cache of {n:,} left out: one slot takes {setting.slot_bytes(n):,} bytes of "
            f"{setting.cache_budget:,}"
            for n in setting.equal
            if n not in setting.fitting
        ]

    def overhead(self) -> None:
        """(c) The hand-over's share of a prompt's prefill."""
        todo = list(missing(self._results, "overhead", "snapstream", self._setting.contexts))
        if not todo:
            return
        _, engine = self._load(builds.MAIN, baseline=False)
        self._prefill(engine, self._prompt(engine, 2 * self._setting.prefill_chunk))
        for context in todo:
            self._results.add("overhead", self._overhead_row(engine, context))
            self._tell(f"overhead {context}")
        engine.close()

    def bandwidth(self) -> float:
        """Bytes read and written in a second by copies within the device."""
        if not self._bandwidth:
            device = self._open_device()
            spec = TensorSpec(name="probe", dtype="float16", shape=[self._setting.probe // 2])
            source, target = device.memory.allocate(spec), device.memory.allocate(spec)

            def copy() -> None:
                device.memory.copy(target, source)
                device.memory.synchronize()

            seconds = [_timed(copy) for _ in range(WARM_UP + PROBES)][WARM_UP:]
            device.close()
            self._bandwidth = 2 * spec.shape[0] * 2 / median(seconds)
        return self._bandwidth

    def _decode(
        self, stage: str, name: str, cache: str, baseline: bool, contexts: tuple[int, ...]
    ) -> None:
        """A row for each context, in ascending order: the next prompt goes on where one ended."""
        todo = list(missing(self._results, stage, cache, contexts))
        if not todo:
            return
        bandwidth = self.bandwidth()
        build, engine = self._load(name, baseline)
        costs = Costs.of(build, full_cache=cache == "full")
        longest = self._prompt(engine, self._setting.prompt(todo[-1]))
        for context in todo:
            length = self._setting.prompt(context)
            self._fill(engine, longest[:length])
            row: Row = {"cache": cache, "context": context, "captured": engine.captured}
            row |= self._steps(engine, costs, length, bandwidth)
            self._results.add(stage, row)
            self._tell(f"{stage} {cache} {context}: {row['milliseconds']} ms")
        engine.close()

    def _steps(self, engine: Executor, costs: Costs, length: int, bandwidth: float) -> Row:
        """All slots, each a token further in every step."""
        slots, steps = engine.limits.batch, self._setting.repeat * self._setting.steps
        tokens = self._rng.integers(0, engine.limits.vocab_size, (WARM_UP + steps, slots))
        lengths = np.full(slots, length)
        seconds = []
        for step, ids in enumerate(tokens):
            started = time.perf_counter()
            engine.decode(ids, lengths + step, lengths)
            seconds.append(time.perf_counter() - started)
        took = median(seconds[WARM_UP:])
        nbytes = costs.decode(length + WARM_UP + steps // 2, length, slots).nbytes
        return {
            "slots": slots,
            "milliseconds": _rounded(1e3 * took),
            "tokens_per_second": _rounded(slots / took),
            "bytes": nbytes,
            "floor_milliseconds": _rounded(1e3 * nbytes / bandwidth),
            "of_floor": _rounded(nbytes / bandwidth / took),
            "bytes_per_second_probed": _rounded(bandwidth),
        }

    def _overhead_row(self, engine: Executor, context: int) -> Row:
        """A prompt that begins like no other, and its hand-over by itself."""
        prompt = self._prompt(engine, self._setting.prompt(context))
        whole = _timed(lambda: self._prefill(engine, prompt))
        again = [_timed(lambda: engine.compress(0, len(prompt))) for _ in range(PROBES)]
        hand_over = median(again)
        return {
            "cache": "snapstream",
            "context": context,
            "prefill_milliseconds": _rounded(1e3 * whole),
            "hand_over_milliseconds": _rounded(1e3 * hand_over),
            "share": _rounded(hand_over / whole),
        }

    def _fill(self, engine: Executor, prompt: list[int]) -> None:
        """Every slot with the prompt: prefilled once, then copied."""
        self._prefill(engine, prompt)
        for slot in range(1, engine.limits.batch):
            engine.move(0, slot)

    def _prefill(self, engine: Executor, prompt: list[int]) -> None:
        for chunk in chunks(len(prompt), engine.limits.prefill_chunk):
            engine.prefill(0, prompt[chunk.start : chunk.end], chunk.start, len(prompt))

    def _prompt(self, engine: Executor, length: int) -> list[int]:
        drawn: list[int] = self._rng.integers(0, engine.limits.vocab_size, length).tolist()
        return drawn

    def _load(self, name: str, baseline: bool) -> tuple[Build, Executor]:
        build = builds.opened(self._folder, name)
        started = time.perf_counter()
        engine = open_executor(build, backend=self._backend, baseline=baseline)
        what = f"{name}{', baseline' if baseline else ''}"
        self._tell(f"loaded {what} in {time.perf_counter() - started:.0f} s")
        self._results.set("operators", self._operators(what, engine))
        return build, engine

    def _operators(self, what: str, engine: Executor) -> dict[str, Any]:
        """Which ones the CPU ran, by build and graph, with those of former builds."""
        assert isinstance(engine.backend, OnnxRuntimeBackend)
        operators = engine.backend.operators()
        ran = {n: by.get("CPUExecutionProvider", {}) for n, by in operators.items()}
        return (self._results.get("operators") or {}) | {what: ran}


def _timed(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _rounded(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")
