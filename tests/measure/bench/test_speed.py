"""`snapexport bench BUILD`: the order of its measurements, and refused options."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.measure.bench import speed
from snapexport.measure.bench.costs import Costs, Weights
from snapexport.measure.bench.plan import Plan
from snapexport.measure.bench.probes import bandwidth, matmul
from snapexport.measure.bench.results import Results
from snapexport.measure.bench.systems import SystemSpec
from snapexport.measure.bench.turns import Case, take_turns
from snapexport.measure.options import BenchOptions

USED = {"empty": 10, "loaded": 20, "peak": 2200, "anonymous_loaded": 5, "anonymous": 6}


@dataclass
class FakeSystem:
    """Notes its actions: the prompts' slots, and the active slots of steps."""

    log: list[tuple[str, int]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)

    def prefill(self, slot: int, prompt: Sequence[int]) -> None:
        self.log.append(("prefill", slot))
        self.prompts.append(list(prompt))

    def fill_slot(self) -> None:
        pass

    def decode(self, active: int) -> None:
        self.log.append(("decode", active))


def spec(
    name: str = "one", batch: int = 4, longest_prompt: int = 1000, positions: int = 2000
) -> SystemSpec:
    def unloadable() -> Any:
        raise AssertionError("this system must not be loaded")

    costs = Costs(Weights(nbytes=1, elements=1, output=1), (), L_obs=1)
    return SystemSpec(name, unloadable, batch, longest_prompt, positions, costs, 100)


def plan_of(build: Build, *names: str, **options: Any) -> Plan:
    specs = [spec(name) for name in names or ("one",)]
    return Plan.over(build, BenchOptions(**options), specs)


def visits(plan: Plan, *systems: Any) -> list[list[Case]]:
    return [
        list(speed.visit(plan, one, system, context))
        for context in plan.contexts
        for one, system in zip(plan.specs, systems, strict=True)
    ]


def test_speed_visit_fills_the_batch_slots_then_decodes_with_fewer(tiny_build: Build) -> None:
    plan = plan_of(tiny_build, contexts=(10, 20), batches=(1, 3), decode_steps=2)
    system = FakeSystem()
    list(take_turns(visits(plan, system), rounds=2))
    warm, actions = 3 + 2, 3 + 2 * 2
    taken = [system.log[at : at + actions] for at in range(warm, len(system.log), actions)]
    assert len(taken) == 2 * 2
    for visit in taken:
        assert sorted(slot for action, slot in visit if action == "prefill") == [0, 1, 2]
        assert [active for action, active in visit if action == "decode"] == [3, 3, 1, 1]


def test_only_the_longest_context_warms_up(tiny_build: Build) -> None:
    plan = plan_of(tiny_build, contexts=(20, 10))
    cases = [case for group in visits(plan, FakeSystem()) for case in group]
    assert {case.labels["context"] for case in cases if case.warm} == {20}


def test_systems_get_the_same_prompts_and_each_visit_another(tiny_build: Build) -> None:
    plan = plan_of(tiny_build, "fast", "slow", contexts=(10, 20), batches=(3,))
    fast, slow = FakeSystem(), FakeSystem()
    list(take_turns(visits(plan, fast, slow), rounds=2))
    first, second = ({tuple(prompt) for prompt in one.prompts} for one in (fast, slow))
    assert first == second
    assert 3 * len(first) == len(fast.prompts)  # into each of three batch slots
    assert len({prompt[:5] for prompt in first}) == len(first)


def test_batches_are_measured_from_the_largest_to_the_smallest(tiny_build: Build) -> None:
    assert plan_of(tiny_build, batches=(1, 4, 2), contexts=(8,)).batches == (4, 2, 1)


def test_bench_defaults_fit_the_system_with_the_tightest_limits(tiny_build: Build) -> None:
    wide, tight = spec(batch=4), spec("full", batch=2, positions=1000)
    plan = Plan.over(tiny_build, BenchOptions(decode_steps=10), [wide, tight])
    assert plan.batches == (2, 1)
    assert plan.contexts == (122, 490)
    alone = Plan.over(tiny_build, BenchOptions(decode_steps=10), [spec(batch=1)])
    assert (alone.batches, alone.contexts) == ((1,), (125, 500))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": (5,)}, "--batches 5 is more than the 4 slots"),
        ({"contexts": (1001,)}, "--contexts 1001 is longer than a prompt can be: 1000"),
        (
            {"contexts": (1000,), "batches": (1,), "decode_steps": 1001},
            "--contexts 1000 leaves no room for 1001 decoded tokens",
        ),
        ({"contexts": ()}, "--contexts is empty"),
        ({"contexts": (0,)}, "--contexts 0 is below 1"),
        ({"contexts": (4, 4)}, "--contexts has 4 twice"),
        ({"repeat": 0}, "--repeat 0 is below 1"),
        ({"decode_steps": 0}, "--decode-steps 0 is below 1"),
        ({"threads": 0}, "--threads 0 is below 1"),
        ({"seed": -1}, "--seed -1 is below 0"),
    ],
)
def test_options_that_cannot_be_measured_are_refused(
    tiny_build: Build, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        plan_of(tiny_build, **options)
    assert error.value.message.startswith(message)


def test_a_build_and_its_baseline_are_two_systems(tiny_build: Build) -> None:
    own, full = Plan.of(tiny_build, BenchOptions(baseline=True)).specs
    assert (own.name, full.name) == ("snapstream", "full")
    assert (own.positions, full.positions) == (1024, 64)
    assert own.cache_bytes < full.cache_bytes
    assert [one.name for one in Plan.of(tiny_build, BenchOptions()).specs] == ["snapstream"]


def test_each_system_has_rows_and_a_roofline_of_memory(
    tiny_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "measure_memory", lambda *_: USED)
    options = BenchOptions(contexts=(16,), decode_steps=2, repeat=1, threads=1, baseline=True)
    plan = Plan.of(tiny_build, options)
    results = Results("speed", "", plan.options, summary=speed.summary)
    speed.run(plan, results, [bandwidth(1, 1 << 12), matmul(1, 16)])
    for name in ("prefill", "decode", "memory"):
        rows = results.sections[name]
        assert {row["system"] for row in rows} == {"snapstream", "full"}
        assert all(row["ratio"] > 0 for row in rows)
    own, _ = results.sections["memory"]
    assert own["ratio"] == pytest.approx(2200 / own["roofline"]["bytes"], rel=1e-4)


def row(context: int, seconds: float) -> dict[str, Any]:
    return {"system": "own", "context": context, "seconds": {"median": seconds}}


def test_compress_summary_has_a_share_of_prefill_and_two_parts() -> None:
    sections = {"prefill": [row(100, 10.0)], "compress": [row(100, 0.5)], "vote": [row(100, 0.125)]}
    (found,) = speed.summary(sections)
    assert found["share_of_prefill"] == 0.05
    assert (found["vote_seconds"], found["moving_seconds"]) == (0.125, 0.375)
    (unsplit,) = speed.summary(sections | {"vote": []})
    assert unsplit["vote_seconds"] is None and unsplit["moving_seconds"] is None


def test_the_compress_step_runs_through_the_executor(tiny_build: Build) -> None:
    plan = Plan.of(tiny_build, BenchOptions(contexts=(40,), threads=1))
    system = plan.specs[0].load()
    system.prefill(0, [n % 200 for n in range(40)])
    kept = [one.copy() for one in system.executor.topk_positions()]
    for one in system.executor.topk_positions():
        one[...] = -7
    system.compress(40)
    seen = system.executor.topk_positions()
    assert [one.tolist() for one in seen] == [one.tolist() for one in kept]


def test_measuring_a_build_needs_no_exporter() -> None:
    code = "import sys, snapexport.cli.bench, snapexport.measure.bench.speed\n"
    code += "print({'onnx', 'torch', 'transformers'} & set(sys.modules) or 'none')"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "none"
