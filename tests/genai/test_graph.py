"""The joined graph, called as genai calls it, against transformers' masked full cache."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from snapexport.contract.build_directory import Build
from snapexport.contract.names import past_of
from snapexport.contract.pieces import Prefill, pieces
from snapexport.genai.folder import GenaiOptions, write_folder
from snapexport.genai.graph import REFUSAL
from tests.builds import build
from tests.genai.caller import Array, Caller
from tests.oracle import cases, turns
from tests.oracle.cases import LOGITS, Case
from tests.oracle.checkpoints import VOCABULARY
from tests.oracle.raw import RawBuild
from tests.parity.test_parity_learned import learned

torch.set_num_threads(1)

STEPS = 24


def folder_of(case: Case, place: Path) -> Path:
    out = place / "genai"
    write_folder(GenaiOptions(build=cases.build_of(case).directory, out=out))
    return out


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 cache slots, of which 4 are sinks; blocks of 32 tokens."""
    return folder_of(Case(extend=True, batch=1), tmp_path_factory.mktemp("llama"))


def assert_near(found: Array, wanted: Array, where: object) -> None:
    assert np.abs(found - wanted).max() < LOGITS, where


def assert_turns(
    case: Case, folder: Path, calls: Sequence[int], steps: int = STEPS, run_alone: int = 0
) -> None:
    """Calls of these lengths, then decode. run_alone: last calls that are decode steps."""
    geometry, checkpoint = case.geometry, cases.checkpoint(case.checkpoint)
    voters = geometry.block_voters(case.prefill_chunk)
    prefill = Prefill((case.prefill_chunk,), 0, voters)
    cut = [pieces(length, 0, prefill, onto_row=True) for length in calls]
    lengths = tuple(piece.end - piece.start for call in cut for piece in call)
    assert len(cut) == len(lengths) or len(cut) == 1, "voters are the last call's last tokens"
    voting = tuple(0 if piece.is_last else voters for call in cut for piece in call)
    ids, wanted = turns.first_clear(checkpoint, lengths, geometry, steps, VOCABULARY, voting)
    caller, turn = Caller(folder), -1
    for call in cut:
        turn += len(call)
        tokens = [token for block in ids[turn + 1 - len(call) : turn + 1] for token in block]
        assert_near(caller.append(tokens), wanted.logits[turn], f"{case} {calls} turn {turn}")
    for step, token in enumerate(wanted.tokens[:steps]):
        assert_near(caller.append([token]), wanted.logits[turn + 1 + step], f"{case} step {step}")


SLOW = "gemma3 gemma4_text.shared llama4_text deepseek-v2"
FAMILIES = (
    *("llama", "qwen3-sliding", "llama-tied"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW.split()),
)
"""GQA, sliding windows, a tied head; then caches of other layers, chunked attention, latents."""


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_agree_with_transformers(name: str, tmp_path: Path) -> None:
    case = Case(name, extend=True, batch=1)
    folder = folder_of(case, tmp_path)
    for length in (33, 100, 200):
        assert_turns(case, folder, [length])


@pytest.mark.parametrize("name", FAMILIES)
def test_full_cache_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    """In one call and in turns, from all of the context on, and after a rewind."""
    case = Case(name, policy="full", L_max=160, batch=1)
    folder = folder_of(case, tmp_path)
    context = json.loads((folder / "genai_config.json").read_text())["model"]["context_length"]
    for calls in ([1], [100], [context], [50, 1, 30, 48], [32, 32]):
        whole = cases.plain(name, sum(calls), 160 - sum(calls))
        caller, done = Caller(folder), 0
        for call in calls:
            logits = caller.append(whole.prompt[done : done + call])
            done += call
        assert_near(logits, whole.prefill_logits, calls)
        caller.rewind_to(done - done // 3)
        if done >= 3:
            assert_near(caller.append(whole.prompt[len(caller.tokens) :]), logits, "after a rewind")
        for token, wanted in zip(whole.tokens, whole.decode_logits, strict=False):
            assert_near(caller.append([token]), wanted, calls)


def test_steps_that_read_a_quarter_of_the_slots_agree(tmp_path: Path) -> None:
    """64 of 260, and all from the 65th valid one on."""
    case = Case(extend=True, batch=1, L_max=288, K=240)
    folder = folder_of(case, tmp_path)
    for length in (30, 60, 100):
        assert_turns(case, folder, [length])


VARIANTS = {"policy": "streaming"}, {"budget": "pyramid"}, {"target": "portable"}


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_policies_and_targets_agree_with_transformers(
    options: dict[str, str], tmp_path: Path
) -> None:
    case = Case(extend=True, batch=1, **options)  # type: ignore[arg-type]
    assert_turns(case, folder_of(case, tmp_path), [100])


@pytest.mark.parametrize("length", range(29, 36))
def test_prompts_around_the_cache_slots_agree(llama: Path, length: int) -> None:
    """Decode begins to vote at position 32, which is a turn of one token."""
    ones = [1] * max(0, 33 - length)
    assert_turns(Case(extend=True, batch=1), llama, [length, *ones])


@pytest.mark.parametrize("calls", [(30, 7, 12, 3, 9, 16, 5, 8), (20, 20, 20), (2, 32, 32)], ids=str)
def test_turns_agree_with_transformers(llama: Path, calls: tuple[int, ...]) -> None:
    assert_turns(Case(extend=True, batch=1), llama, calls)


HEADS = {"budget": "heads", "head_budget": ((6, 20), (9, 9))}
OTHERS = {"weights": "int8"}, {"weights": "int4"}, {"cache_dtype": "fp16"}, HEADS


@pytest.mark.parametrize("options", OTHERS, ids=lambda options: next(iter(options)))
def test_other_builds_agree_with_their_own_graphs(options: dict[str, Any], tmp_path: Path) -> None:
    case, ids = Case(extend=True, batch=1, **options), random_tokens(150)
    caller = Caller(folder_of(case, tmp_path))
    caller.append(ids[:40])
    assert_near(caller.append(ids[40:]), by_blocks(case, ids[:40], ids[40:]), case)


def test_long_turns_are_cut_into_blocks_like_prompts(llama: Path) -> None:
    """Against the build's own graph of blocks, which the host feeds."""
    ids, case = random_tokens(150), Case(extend=True, batch=1)
    caller = Caller(llama)
    caller.append(ids[:40])
    assert_near(caller.append(ids[40:]), by_blocks(case, ids[:40], ids[40:]), "turn of 110 tokens")


@pytest.mark.parametrize("voter", ["both", "learned"])
def test_cached_positions_keep_learned_scores(voter: str, tmp_path: Path) -> None:
    """Their caches are one more layer of genai's: no question has to be in a block."""
    sizes: dict[str, Any] = {"L_max": 96, "L_sink": 4, "L_recent": 16, "K": 12, "batch": 1}
    given = sizes | {"prefill_chunk": 32, "extend": True}
    scores, ids = learned("llama")[0], random_tokens(150)
    built = build(
        cases.checkpoint("llama"), tmp_path / "b", **given, scores=scores, vote_queries=voter
    )
    write_folder(GenaiOptions(build=built.directory, out=tmp_path / "genai"))
    caller = Caller(tmp_path / "genai")
    caller.append(ids[:40])
    assert_near(caller.append(ids[40:]), of_graph(built, ids[:40], ids[40:]), voter)


def by_blocks(case: Case, *calls: Sequence[int]) -> Array:
    """Logits after calls whose blocks the host cuts."""
    return of_graph(Build.open(cases.built(case).directory), *calls)


def of_graph(built: Build, *calls: Sequence[int]) -> Array:
    """The same of any build."""
    session = RawBuild(built.directory).session("extend")
    voters = built.manifest.geometry.block_voters(32)
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}
    row = {one.name: np.zeros(one.shape, types[one.type]) for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    length = 0
    for call in calls:
        for piece in pieces(len(call), 0, Prefill((32,), 0, voters), onto_row=True):
            own = call[piece.start : piece.end]
            after = [] if piece.is_last else call[len(call) - voters :]
            count = len(own) + len(after)
            row["input_ids"] = np.array([[*own, *after, *[0] * (32 - count)]])
            positions = [*range(length, length + len(own)), *[-1] * (32 - len(own))]
            row |= {"position_ids": np.array([positions]), "chunk_length": np.array([count])}
            out = dict(zip(names, session.run(None, row), strict=True))
            length += len(own)
            row |= {past_of(name): value for name, value in out.items() if name != "logits"}
    found: Array = out["logits"][0]
    return found


def random_tokens(count: int) -> list[int]:
    found: list[int] = np.random.default_rng(count).integers(3, VOCABULARY, count).tolist()
    return found


def logits_of(folder: Path, *calls: Sequence[int]) -> Array:
    """After the last of several calls of a new sequence."""
    caller = Caller(folder)
    return [caller.append(tokens) for tokens in calls][-1]


def test_positions_follow_the_tokens_that_were_run(llama: Path) -> None:
    """The caller samples a token, does not run it, and goes on behind it."""
    ids = random_tokens(120)
    for length in (20, 70):
        caller = Caller(llama)
        caller.append(ids[:length])
        caller.sample(5)
        found = caller.append(ids[length : length + 9])
        wanted = logits_of(llama, ids[:length], ids[length : length + 9])
        assert np.array_equal(found, wanted), length


def test_token_that_was_not_run_may_be_given_again(llama: Path) -> None:
    ids = random_tokens(60)
    caller = Caller(llama)
    caller.append(ids[:40])
    caller.sample(ids[40])
    found = caller.append(ids[40:])
    assert np.array_equal(found, logits_of(llama, ids[:40], ids[40:]))


def test_rewinds_in_a_whole_cache_are_exact(llama: Path) -> None:
    ids = random_tokens(60)
    caller = Caller(llama)
    caller.append(ids[:25])
    for token in ids[40:45]:
        caller.append([token])
    caller.rewind_to(20)
    found = caller.append(ids[20:50])
    assert np.array_equal(found, logits_of(llama, ids[:20], ids[20:50]))


@pytest.mark.parametrize("length", [0, 4])
def test_rewinds_to_sinks_are_exact(llama: Path, length: int) -> None:
    ids = random_tokens(90)
    caller = Caller(llama)
    caller.append(ids)
    caller.rewind_to(length)
    calls = [part for part in (ids[:length], ids[50:]) if part]
    assert np.array_equal(caller.append(ids[50:]), logits_of(llama, *calls))


@pytest.mark.parametrize("count", [1, 10, 80])
def test_other_rewinds_are_errors_that_change_nothing(llama: Path, count: int) -> None:
    ids = random_tokens(200)
    caller = Caller(llama)
    caller.append(ids[:90])
    before = {name: caller.cache(name) for name in caller.held}
    caller.rewind_to(80)
    with pytest.raises(Exception, match=REFUSAL):
        caller.append(ids[80 : 80 + count])
    assert all(np.array_equal(caller.cache(name), before[name]) for name in before)
    caller.rewind_to(0)
    assert np.array_equal(caller.append(ids[:40]), logits_of(llama, ids[:40]))


def test_20000_tokens_leave_the_state_as_small(llama: Path) -> None:
    caller = Caller(llama)
    ids = random_tokens(20_000)
    for start in range(0, 20_000, 4_000):
        assert np.isfinite(caller.append(ids[start : start + 4_000])).all()
    assert np.isfinite(caller.append([7])).all()


def test_graph_is_valid_and_needs_two_inputs_beside_caches(llama: Path) -> None:
    onnx.checker.check_model(str(llama / "model.onnx"))
    graph = onnx.load(llama / "model.onnx", load_external_data=False).graph
    tokens = [
        (one.name, [dim.dim_param or dim.dim_value for dim in shape(one)]) for one in graph.input
    ]
    assert tokens[:2] == [("input_ids", [1, "n"]), ("position_ids", [1, "n"])]
    assert [dim.dim_value for dim in shape(graph.output[0])] == [1, 1, VOCABULARY]
    pasts = [name for name, _ in tokens[2:]]
    assert pasts == [f"past_key_values.{n}.{part}" for n in range(3) for part in ("key", "value")]
    presents = [one.name for one in graph.output][1:]
    assert presents == [name.replace("past_key_values", "present") for name in pasts]


def shape(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    return value.type.tensor_type.shape.dim


def test_positions_of_cache_slots_decide_nothing(llama: Path) -> None:
    """They are inputs of the blocks' graph, and no part of genai's state."""
    session = cases.built(Case(extend=True, batch=1)).session("extend")
    rng = np.random.default_rng(0)
    feeds = {
        one.name: rng.standard_normal(one.shape).astype(np.float32)
        for one in session.get_inputs()
        if one.name.startswith("past_key_values.")
    }
    feeds |= {
        "input_ids": np.array([random_tokens(32)]),
        "position_ids": np.arange(50, 82)[None],
        "chunk_length": np.array([32]),
    }
    held = [one for one in session.get_inputs() if one.name not in feeds]
    wanted = [one.name for one in session.get_outputs() if "slot_positions" not in one.name]
    runs = [
        session.run(wanted, feeds | {one.name: np.full(one.shape, fill) for one in held})
        for fill in (-1, 9)
    ]
    assert held and all(np.array_equal(*pair) for pair in zip(*runs, strict=True))
