"""The joined graph's functions: blocks are cut as on the host, and rewinds are known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from snapexport.contract.pieces import Prefill, pieces
from snapexport.genai.functions import BEGIN, DIGIT, IS_STEP, RECORD, TAKE_BLOCK, WRITE
from snapexport.graphs.functions import Function

INT64 = TensorProto.INT64
SINKS, HELD = 4, 32


def session(
    function: Function, inputs: dict[str, int], outputs: dict[str, int], **attributes: Any
) -> onnxruntime.InferenceSession:
    """A model that calls the function. inputs, outputs: types by name."""
    node = helper.make_node(function.name, [*inputs], [*outputs], domain="snapexport", **attributes)
    values = [
        [helper.make_tensor_value_info(name, kind, None) for name, kind in some.items()]
        for some in (inputs, outputs)
    ]
    model = helper.make_model(
        helper.make_graph([node], "test", *values),
        functions=[function.proto()],
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("snapexport", 1)],
        ir_version=12,
    )
    return onnxruntime.InferenceSession(model.SerializeToString())


def blocks(
    take: onnxruntime.InferenceSession, chunk: int, tokens: Sequence[int], place: int
) -> list[tuple[list[int], list[int]]]:
    """Ids and positions of each block that a prompt is cut into, without padding."""
    found, start, goes_on = [], np.array([0]), np.True_
    ids = np.array([tokens])
    while goes_on:
        feeds = {"input_ids": ids, "place": np.array([place]), "start": start}
        given, positions, length, start, goes_on = take.run(None, feeds)
        assert given.shape == positions.shape == (1, chunk)
        assert (positions[0, length[0] :] == -1).all()
        found.append((given[0, : length[0]].tolist(), positions[0, : length[0]].tolist()))
    return found


@pytest.mark.parametrize(("chunk", "voters"), [(8, 4), (16, 3), (128, 8), (5, 0)])
def test_prompts_are_cut_as_on_the_host(chunk: int, voters: int) -> None:
    inputs = dict.fromkeys(("input_ids", "place", "start"), INT64)
    outputs = dict.fromkeys(("ids", "positions", "length", "stop"), INT64)
    outputs["goes_on"] = TensorProto.BOOL
    take = session(TAKE_BLOCK, inputs, outputs, chunk=chunk, voters=voters)
    for length in (*range(1, 3 * chunk + 2), 10 * chunk + 7):
        tokens = [*range(100, 100 + length)]
        cut = pieces(length, 0, Prefill((chunk,), 0, voters), onto_row=True)
        wanted = []
        for piece in cut:
            after = tokens[length - voters :] if not piece.is_last and voters else []
            own = tokens[piece.start : piece.end]
            positions = [*range(7 + piece.start, 7 + piece.end)]
            wanted.append((own + after, positions + [-1] * len(after)))
        assert blocks(take, chunk, tokens, 7) == wanted, length


@pytest.mark.parametrize(
    ("tokens", "place", "is_step"),
    [(1, 0, True), (1, 31, True), (1, 32, False), (1, 33, True), (1, 40, False), (2, 5, False)],
)
def test_decode_takes_one_token_unless_a_cache_begins_to_vote(
    tokens: int, place: int, is_step: bool
) -> None:
    inputs = {"input_ids": INT64, "place": INT64}
    route = session(IS_STEP, inputs, {"is_step": TensorProto.BOOL}, sizes=[32, 40])
    feeds = {"input_ids": np.zeros((1, tokens), np.int64), "place": np.array([place])}
    (found,) = route.run(None, feeds)
    assert found.shape == () and found == is_step


class Recorder:
    """The record of calls, through Begin."""

    def __init__(self, dtype: str, slots: int) -> None:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        inputs = {"input_ids": INT64, "position_ids": INT64, "was_high": kind, "was_low": kind}
        outputs = {"place": INT64, "fault": INT64, "record": INT64}
        limits = {"sinks": SINKS, "held": HELD, "digit": DIGIT, "record": [RECORD]}
        self._begin = session(BEGIN, inputs, outputs, **limits)
        written = {"high": kind, "low": kind}
        self._write = session(WRITE, {"record": INT64, "past": kind}, written, digit=DIGIT)
        shape = (1, 1, slots, RECORD)
        self._digits = [np.full(shape, 7, dtype), np.full(shape, 7, dtype)]

    def call(self, first: int, count: int) -> int | None:
        """Where `count` tokens from the caller's position `first` on are put; None: an error."""
        high, low = self._digits
        feeds = {
            "input_ids": np.zeros((1, count), np.int64),
            "position_ids": np.arange(first, first + count)[None],
            "was_high": high,
            "was_low": low,
        }
        place, fault, record = self._begin.run(None, feeds)
        assert place.shape == fault.shape == (1,)
        if fault[0]:
            return None
        digits = self._write.run(None, {"record": record, "past": high})
        assert all(new.shape == high.shape and new.dtype == high.dtype for new in digits)
        self._digits = digits
        return int(place[0])


TYPES = [("float32", 32), ("float16", 32), ("float32", 1)]


@pytest.mark.parametrize(("dtype", "slots"), TYPES)
def test_calls_go_on_where_the_last_one_ended(dtype: str, slots: int) -> None:
    record = Recorder(dtype, slots)
    length = 0
    for count in (3, 1, 1000, 1, 1, 60_000, 70_007, 1):
        assert record.call(length, count) == length
        length += count


@pytest.mark.parametrize(("dtype", "slots"), TYPES)
def test_tokens_that_were_never_run_take_no_place(dtype: str, slots: int) -> None:
    record = Recorder(dtype, slots)
    assert record.call(0, 2000) == 0
    assert record.call(2001, 5) == 2000
    assert record.call(2006, 1) == 2005
    assert record.call(2008, 40_000) == 2006
    assert record.call(42_008, 1) == 42_006
    assert record.call(42_011, 1) is None, "two tokens are missing at once"


def test_rewinds_are_exact_while_nothing_was_dropped() -> None:
    record = Recorder("float32", 1)
    record.call(0, HELD)
    assert record.call(10, 5) == 10
    assert record.call(14, 30) == 14
    assert record.call(43, 1) is None
    assert record.call(20, 1) is None
    assert record.call(44, 1) == 44, "a refused call changes nothing"


@pytest.mark.parametrize("place", range(SINKS + 1))
def test_rewinds_into_the_sinks_are_exact_at_any_time(place: int) -> None:
    record = Recorder("float32", 1)
    record.call(0, 5000)
    assert record.call(place, 3) == place
    assert record.call(place + 3, 1) == place + 3


def test_position_after_the_sinks_is_refused() -> None:
    record = Recorder("float32", 1)
    record.call(0, HELD + 1)
    assert record.call(SINKS + 1, 3) is None


def test_rewinds_know_which_tokens_were_never_run() -> None:
    record = Recorder("float32", 1)
    record.call(0, 10)
    assert record.call(11, 4) == 10  # the caller's 10 was never run
    assert record.call(16, 4) == 14  # nor was its 15
    assert record.call(18, 1) == 16, "after the last of them"
    assert record.call(12, 1) is None, "between them"
    assert record.call(10, 1) == 10, "at the first of them"
    assert record.call(11, 1) == 11, "nothing is missing any more"


def test_beginning_again_forgets_everything() -> None:
    record = Recorder("float16", 32)
    record.call(0, 700)
    record.call(701, 3)
    assert record.call(0, 9) == 0
    assert record.call(9, 2) == 9
