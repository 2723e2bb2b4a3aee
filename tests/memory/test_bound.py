"""The bound of a server: computed at once, and refused with what would fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snapexport.builder.plan import PlanRequest, make_plan
from snapexport.contract.build_directory import Build
from snapexport.contract.memory import cache_bytes
from snapexport.errors import UserError
from snapexport.serving.memory.bound import Queue, ServerMemory
from snapexport.serving.memory.planned import planned_bound
from snapexport.serving.memory.watch import Watch
from snapexport.serving.options import ServeOptions
from snapexport.vault import CHECKPOINT
from tests.memory.load import Readings, problems
from tests.serving.process import SECONDS, start

MIB = 1 << 20


@pytest.fixture
def server(build: Path) -> ServerMemory:
    return ServerMemory(Build.open(build), ServeOptions(build, backend="onnxruntime"))


def changed(server: ServerMemory, **options: Any) -> ServerMemory:
    return replace(server, options=replace(server.options, **options))


def test_bound_is_the_sum_of_its_parts_and_holds_all_caches(server: ServerMemory) -> None:
    bound, cache = server.with_queue(Queue(64)), cache_bytes(server.build.manifest)
    assert bound.nbytes == sum(part.nbytes for part in bound.parts)
    (caches,) = (part for part in bound.parts if part.name == "caches")
    assert (caches.nbytes, caches.source) == (cache.decode + cache.prefill, "exact")
    assert all(part.nbytes >= 0 for part in bound.parts)


def test_bound_grows_by_each_parked_row_and_waiting_request(server: ServerMemory) -> None:
    row = cache_bytes(server.build.manifest).decode // server.build.manifest.batch
    few, many = (changed(server, parked_rows=n).with_queue(Queue(64)).nbytes for n in (1, 101))
    assert many - few >= 100 * row
    assert server.with_queue(Queue(65)).nbytes > server.with_queue(Queue(64)).nbytes


@pytest.mark.parametrize("mib", [600, 1000, 2500])
def test_queue_of_a_memory_fits_into_it(server: ServerMemory, mib: int) -> None:
    queue = server.queue(mib * MIB)
    assert server.with_queue(queue).nbytes <= mib * MIB
    assert queue.max_pending <= server.options.max_pending
    assert queue.bodies >= queue.body >= 4 * 2064, "the longest prompt can be sent"


def test_more_memory_gives_no_smaller_queue(server: ServerMemory) -> None:
    queues = [server.queue(mib * MIB) for mib in (450, 600, 1000, 1500, 2500)]
    sizes = [(queue.max_pending, queue.bodies) for queue in queues]
    assert sizes == sorted(sizes)
    assert queues[-1] == server.queue(None)


def test_what_the_refusal_names_fits(server: ServerMemory) -> None:
    with pytest.raises(UserError, match="does not fit into 100 MiB") as error:
        server.queue(100 * MIB)
    needed = int(str(error.value.hint).partition("--memory ")[2].partition("MiB")[0])
    assert server.queue(needed * MIB).max_pending == 0
    with pytest.raises(UserError):
        server.queue((needed - 1) * MIB)


def test_rows_that_the_refusal_names_fit(server: ServerMemory) -> None:
    memory = 450 * MIB
    with pytest.raises(UserError) as error:
        changed(server, parked_rows=10_000).queue(memory)
    rows = int(str(error.value.hint).partition("--parked-rows ")[2].partition(";")[0])
    assert changed(server, parked_rows=rows).queue(memory)


def test_plan_counts_what_the_server_of_its_build_counts(server: ServerMemory) -> None:
    manifest, usual = server.build.manifest, server.options.max_pending
    flags = {"L_max": 2064, "kv_budget": 128, "batch": 8, "prefill_chunk": 256}
    made = make_plan(PlanRequest(1 << 30, {"model": CHECKPOINT, **flags}))
    planned = planned_bound(made.recommendation.alternative, manifest.batch)
    least = [queue for queue in server.queues() if queue.max_pending == usual][-1]
    assert planned and 1 <= planned.nbytes / server.with_queue(least).nbytes < 1.05


def test_command_refuses_before_it_loads(build: Path, tmp_path: Path) -> None:
    process = start(build, tmp_path, "--memory", "64MiB")
    out, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (2, "")
    assert errors.startswith("error: ") and "\n\nhint: what would: --memory " in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("word", ["0", "-1GiB", "much"])
def test_unreadable_memory_sizes_are_refused(build: Path, tmp_path: Path, word: str) -> None:
    process = start(build, tmp_path, f"--memory={word}")
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 2 and "Traceback" not in errors


class Admission:
    """Counts what a watch does."""

    def __init__(self) -> None:
        self.holds, self.ended = False, 0

    def end_latest(self) -> None:
        self.ended += 1


def test_watch_refuses_near_the_bound_and_ends_the_latest_request_after_that() -> None:
    admission, memory, trims = Admission(), [0], []
    watch = Watch(1000, admission, lambda: memory[0], lambda: trims.append(memory[0]))
    states = []
    for memory[0] in (900, 960, 980, 960, 900):
        watch.look()
        states.append((admission.holds, admission.ended))
    assert states == [(False, 0), (True, 0), (True, 1), (True, 1), (False, 1)]
    assert trims == [960, 980, 960] and watch.peak == 980


def test_watch_refuses_the_request_that_comes_near_the_bound_within_a_second() -> None:
    admission, memory = Admission(), [900]
    watch = Watch(1000, admission, lambda: memory[0], lambda: None)
    found = []
    for memory[0] in (900, 960, 900):
        found.append(watch.admits())
    assert found == [True, False, False], "only a look lets requests in again"
    watch.look()
    assert watch.admits()


def test_watch_goes_on_where_trimming_is_enough() -> None:
    admission, memory = Admission(), [990]
    Watch(1000, admission, lambda: memory[0], lambda: memory.__setitem__(0, 500)).look()
    assert not admission.holds and not admission.ended


def test_judge_names_what_passes_the_bound() -> None:
    fine = Readings(bound=100, resident=[50, 90], peak=95)
    fine.statuses.update({"200": 3, "left": 1})
    assert problems(fine, 1.5) == []
    assert problems(replace(fine, peak=101)) == ["101 bytes are resident, the bound is 100"]
    assert problems(replace(fine, peak=50), 1.5) == ["the bound is 2.00 times the peak"]


def test_only_one_process_on_a_cpu_has_a_bound(server: ServerMemory) -> None:
    on_gpu = changed(server, backend="onnxruntime-cuda")
    assert not on_gpu.is_bounded
    with pytest.raises(UserError, match="--memory bounds a build"):
        on_gpu.queue(1 << 40)
