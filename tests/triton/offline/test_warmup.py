"""Every decode graph has run before anybody asks."""

from snapexport.serving.triton.backend.warmup import run_every_decode
from tests.runtime.fake_executor import FakeExecutor, make_limits


def test_a_step_of_each_number_of_slots() -> None:
    engine = FakeExecutor(make_limits(batch=8, decode_batches=(1, 4, 8)))
    run_every_decode(engine)
    assert engine.counts == [1, 4, 8]
