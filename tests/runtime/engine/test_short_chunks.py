"""Short chunks give what whole chunks alone give, for less work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport import LLM, SamplingParams
from snapexport.builder import BuildOptions
from snapexport.contract.pieces import Prefill, pieces, pieces_of
from snapexport.errors import UserError
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build
from tests.facts import model_facts
from tests.oracle import cases
from tests.oracle.cases import Case, build_of

SHORT = (8, 16)
LENGTHS = (1, 8, 9, 17, 32, 33, 40, 47, 64, 81, 5)
CASES = (
    Case(),
    Case(policy="full"),
    Case("gemma2", cache_dtype="int8"),
    *(pytest.param(Case(name), marks=pytest.mark.slow) for name in ("falcon_h1", "deepseek-v3")),
    Case(vote_queries="pseudo"),
    Case(target="portable", top_tokens=4, share_weights=True),
)


def executors(case: Case) -> tuple[Executor, Executor]:
    """With short chunks, and without."""
    short = replace(case, short_chunks=SHORT)
    return open_executor(build_of(short), threads=1), open_executor(build_of(case), threads=1)


def assert_same(ours: Executor, plain: Executor, length: int) -> None:
    """The vote of the last prompt, and batch slot 0."""
    for got, want in zip(ours.topk_positions() or (), plain.topk_positions() or (), strict=True):
        assert np.array_equal(got, want)
    for name, want in plain.decode_buffers.items():
        if name.startswith("past_") and "full" not in name:
            got, most = ours.decode_buffers[name][0], 1 if want.dtype == np.int8 else 1e-4
            if want.shape[2] == plain.limits.longest_prompt:  # behind a prompt is what it left
                got, want = got[:, :length], want[:, :, :length]
            assert np.abs(got.astype(float) - want[0].astype(float)).max() <= most, name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_prompts_of_all_lengths_fill_a_slot_alike(case: Case) -> None:
    """One after the other, so that each finds the last one's leftovers; twice, as from a cache."""
    ours, plain = executors(case)
    for length in (*LENGTHS, 33, 40):
        ids = cases.prompt(length)
        for _ in range(2):
            got = ours.prefill_prompt(0, ids).logits.copy()
            assert np.abs(got - plain.prefill_prompt(0, ids).logits).max() < 1e-4, length
            assert_same(ours, plain, length)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case("falcon_h1", extend=True, L_obs=16, short_chunks=(16, 28)), marks=pytest.mark.slow
        ),
        Case("gemma2", extend=True, cache_dtype="int8", short_chunks=SHORT),
    ],
    ids=str,
)
def test_prompts_in_short_blocks_keep_what_whole_blocks_keep(case: Case) -> None:
    """Some blocks have a window of voters behind them that is more than half of a short one."""
    plain = replace(case, short_chunks=())
    ours, whole = (
        open_executor(build_of(one), threads=1, prefill="blocks") for one in (case, plain)
    )
    costs: set[int] = set()
    for length in (5, 12, 33, 60, 90):
        ids, work = cases.prompt(length), pieces_of(length, ours.limits.prefill)
        costs |= {piece.cost for piece in work}
        got = ours.prefill_prompt(0, ids).logits.copy()
        assert np.abs(got - whole.prefill_prompt(0, ids).logits).max() < 1e-4, length
        taken = [one._takers["block"].slot_positions(length) for one in (ours, whole)]
        assert all(np.array_equal(taken[0][name], taken[1][name]) for name in taken[1])
        assert_same(ours, whole, length)
    assert costs > {*case.short_chunks}


def test_a_piece_costs_the_shortest_chunk_that_holds_it() -> None:
    prefill = Prefill((*SHORT, 32), 96, voters=4)
    assert [piece.cost for piece in pieces(8, 0, prefill, onto_row=False)] == [8]
    found = [(one.start, one.end, one.cost) for one in pieces(75, 0, prefill, onto_row=False)]
    assert found == [(0, 32, 32), (32, 64, 32), (59, 75, 16)]
    turn = pieces(90, 85, prefill, onto_row=True)
    assert [piece.cost for piece in turn] == [8]
    stateful = replace(prefill, rewinds=False)
    found = [(one.start, one.end, one.cost) for one in pieces(41, 0, stateful, onto_row=False)]
    assert found == [(0, 9, 16), (9, 41, 32)]


def test_a_row_is_used_where_it_saves_work() -> None:
    plain, prefill = Prefill((32,), 96), Prefill((*SHORT, 32), 96)
    assert [prefill.least_row(length) for length in (8, 9, 16, 17, 32)] == [8, 1, 8, 1, 16]
    assert [plain.least_row(length) for length in (8, 32, 33, 64, 90)] == [8, 32, 1, 32, 26]
    assert [prefill.least_row(length) for length in (33, 64, 90)] == [1, 32, 26]


def test_a_short_turn_onto_a_row_runs_a_short_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(extend=True, short_chunks=SHORT)
    llm, ran = LLM(build_of(case).directory, threads=1, parked_rows=2), list[int]()
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    prompt = list(cases.prompt(90))
    llm.generate([prompt], params)
    for tokens, graph in llm.executor._takers["block"]._graphs.items():
        run = graph.run
        monkeypatch.setattr(graph, "run", lambda n=tokens, run=run: (ran.append(n), run())[1])
    llm.generate([prompt + list(cases.prompt(14))], params)
    assert ran == [16]


def test_a_build_to_extend_has_a_short_chunk_by_default(checkpoint: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"L_max": 256, "extend": True, "decode_batches": ()}
    made = build(checkpoint, tmp_path / "b", **options).manifest
    assert made.chunks[:-1] == (32,)
    assert {"prefill.c32", "extend.c32"} < set(made.graphs)
    assert made.graphs["extend.c32"].inputs[0].shape == [1, 32]


@pytest.mark.parametrize(
    "options",
    [
        {"extend": False},
        {"prefill_chunk": 48},
        {"prefill_chunk": 256},
        {"L_obs": 40, "L_recent": 40},
        {"weights": "int4"},
        {"prefill_budget": 192, "L_max": 512, "prefill_chunk": 64},
        {"dtype": "fp16"},
        {"short_chunks": (0,)},
    ],
    ids=str,
)
def test_no_short_chunk_where_it_would_not_pay(options: dict[str, Any], tmp_path: Path) -> None:
    options = {"L_max": 256, "extend": True} | options
    made = BuildOptions.of(model="m", out=tmp_path / "b", **options)
    geometry = made.geometry(model_facts(2))
    assert made.chunks(geometry) == (made.chunk(geometry),)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"short_chunks": (4,)}, "--short-chunks 4 has to be below"),
        ({"short_chunks": (16, 32)}, "at least the vote's window, 8"),
        ({"short_chunks": (-1,)}, "--short-chunks -1 has to be below"),
        ({"short_chunks": (16,), "prefill_chunk": 96}, "a prefill chunk of L_max"),
        ({"short_chunks": (16,), "prefill_budget": 64}, "attends to everything"),
        ({"short_chunks": (16,), "vote_queries": "repeat", "L_obs": None}, "--vote-queries repeat"),
    ],
)
def test_short_chunks_without_sense_are_refused(
    options: dict[str, Any], refused: str, checkpoint: Path, tmp_path: Path
) -> None:
    options = {"L_max": 96, "prefill_chunk": 32, "L_obs": 8} | options
    with pytest.raises(UserError, match=refused):
        build(checkpoint, tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()
