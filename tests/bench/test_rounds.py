"""How measurements are taken, on a clock that only the contenders move."""

import pytest

from snapexport.bench.hand_over import HandOver
from snapexport.bench.options import BenchOptions
from snapexport.bench.plan import Plan
from snapexport.bench.rounds import SHORT, Bench
from snapexport.bench.samples import Sample, gathered
from tests.bench.fakes import Clock, FakeContender, FakeHandOver, FakePart, FakeProbe, entrant

OPTIONS = BenchOptions(contexts=(10, 20), batches=(1, 3), decode_steps=2, repeat=2)


class Scene:
    """Two contenders, both probes and a hand-over on one clock."""

    def __init__(self, votes: bool = True) -> None:
        clock, self.log = Clock(), list[tuple[object, ...]]()
        self.fast = FakeContender(clock, "fast", self.log, 0.5, per_step=1.0, per_slot=0.25)
        self.slow = FakeContender(clock, "slow", self.log, 2.0, per_step=4.0)
        vote = FakePart(clock, 2.0) if votes else None
        self.hand_over = FakeHandOver(FakePart(clock, 3.0), vote)
        probes = [FakeProbe(clock, "bandwidth", 100, 4.0), FakeProbe(clock, "matmul", 100, 2.0)]
        plan = Plan.of(OPTIONS, [entrant("fast"), entrant("slow")])
        contenders = {"fast": self.fast, "slow": self.slow}
        hand_over = "fast", _as_hand_over(self.hand_over)
        self.bench = Bench(plan, contenders, 1000, probes, hand_over, clock)


def _as_hand_over(fake: FakeHandOver) -> HandOver:
    return fake  # type: ignore[return-value]


def test_samples_say_how_long_each_action_took() -> None:
    samples = list(Scene().bench.samples())
    prefill = gathered(samples, "prefill")
    taken = {(p.contender, p.context): set(seconds) for p, seconds in prefill.items()}
    assert taken == {
        ("fast", 10): {5.0},
        ("fast", 20): {10.0},
        ("slow", 10): {20.0},
        ("slow", 20): {40.0},
    }
    assert {len(seconds) for seconds in prefill.values()} == {2 * 3}
    decode = gathered(samples, "decode")
    assert {(p.contender, p.batch): set(s) for p, s in decode.items()} == {
        ("fast", 3): {1.75},
        ("fast", 1): {1.25},
        ("slow", 3): {4.0},
        ("slow", 1): {4.0},
    }
    assert {len(seconds) for seconds in decode.values()} == {2 * 2}


def test_probes_are_rates_and_taken_in_every_round() -> None:
    samples = list(Scene().bench.samples())
    assert [s.value for s in samples if s.measure == "bandwidth"] == [25.0] * 2 * SHORT
    assert [s.value for s in samples if s.measure == "matmul"] == [50.0] * 2 * SHORT


@pytest.mark.parametrize("votes", [True, False])
def test_the_hand_over_and_its_vote_are_timed_at_every_context(votes: bool) -> None:
    scene = Scene(votes)
    samples = list(scene.bench.samples())
    found = [(s.measure, s.contender, s.context, s.value) for s in samples if _is_part(s)]
    expected = [("hand_over", "fast", context, 3.0) for context in (10, 20)]
    if votes:
        expected += [("vote", "fast", context, 2.0) for context in (10, 20)]
    assert sorted(found) == sorted(2 * SHORT * expected)
    assert scene.hand_over.lengths == [10, 20] * 3


def _is_part(sample: Sample) -> bool:
    return sample.measure in ("hand_over", "vote")


def test_a_visit_fills_the_slots_then_decodes_with_fewer_and_fewer() -> None:
    scene = Scene()
    list(scene.bench.samples())
    actions = 3 + 2 * 2
    visits = [scene.log[at : at + actions] for at in range(6, len(scene.log), actions)]
    assert len(visits) == 2 * 2 * 2
    for visit in visits:
        assert len({entry[0] for entry in visit}) == 1
        assert [one[2] for one in visit if one[1] == "prefill"] == [0, 1, 2]
        assert [one[2] for one in visit if one[1] == "decode"] == [3, 3, 1, 1]


def test_the_warm_up_takes_the_longest_prompt_and_is_not_told() -> None:
    scene = Scene()
    told = [s for s in scene.bench.samples() if s.measure in ("prefill", "decode")]
    warm = [(name, "prefill", 0, 20) for name in ("fast", "slow")]
    steps = [(name, "decode", 1) for name in ("fast", "slow") for _ in range(2)]
    assert len(scene.log) == len(told) + 6
    assert sorted(map(str, scene.log[:6])) == sorted(map(str, [*warm, *steps]))


def test_contenders_get_the_same_prompts_and_none_twice() -> None:
    scene = Scene()
    list(scene.bench.samples())
    fast, slow = ({tuple(prompt) for prompt in one.prompts} for one in (scene.fast, scene.slow))
    assert fast == slow
    assert len(fast) == len(scene.fast.prompts)
    assert len({prompt[:5] for prompt in fast}) == len(fast)
    assert all(0 <= token < 1000 for prompt in fast for token in prompt)
