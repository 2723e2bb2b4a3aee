"""Greedy answers to instructions about documents, and where they part from the full cache's."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.measure import plots
from snapexport.measure.eval.estimate import estimate
from snapexport.measure.eval.grid import Grid
from snapexport.measure.eval.records import Answer, answer_rows
from snapexport.measure.eval.requests import in_chat, instruct
from snapexport.measure.eval.run import Evaluation
from snapexport.measure.eval.sample import Text
from snapexport.measure.options import EvalOptions
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.measure.eval.builds import documents_grid, report_of

MOST = 12
INSTRUCTIONS = "the register", "the amber heron"


def grid_of(build: Build, folder: Path, **choices: object) -> Grid:
    asked = {"instructions": INSTRUCTIONS, "max_tokens": MOST, "passages": 2, "continuation": 0}
    return documents_grid(build, folder, **asked | choices)


def records_of(evaluation: Evaluation) -> Iterator[Answer]:
    for record in evaluation.run():
        assert isinstance(record, Answer)
        yield record


def test_answers_are_those_that_the_runtime_writes(vault_build: Build, folder: Path) -> None:
    """Against LLM.generate, one prompt and one system at a time."""
    grid = grid_of(vault_build, folder)
    records = list(records_of(Evaluation(grid, None)))
    assert len(records) == grid.records == 2 * 2 * 2 * 3
    written = {one.key: one for one in records}
    params = SamplingParams(max_tokens=MOST)
    own = LLM(vault_build.directory, threads=1)
    full = LLM(vault_build.directory, baseline=True, threads=1)
    for prompt in grid.requests.instructions:
        place = prompt.length, prompt.passage, prompt.instruction
        (own_text,), (full_text,) = (
            [one.text for one in llm.generate([prompt.prompt_ids], params)] for llm in (own, full)
        )
        assert written["snapstream", 64, *place].text == own_text
        (full_record,) = (one for one in records if one.system == "full" and one.key[2:] == place)
        assert full_record.text == full_text
        assert full_record.equal == full_record.tokens == full_record.full_tokens


def test_a_prompt_is_the_beginning_of_a_passage_and_the_instruction(
    vault_build: Build, folder: Path
) -> None:
    grid = grid_of(vault_build, folder)
    text = (folder / "0.txt").read_text()
    tokenizer = grid.requests.tokenizer
    prompt = grid.requests.instructions[0]
    asked = tokenizer.decode(list(prompt.prompt_ids))
    context, _, instruction = asked.partition("\n\n")
    assert text.startswith(context.strip()) and instruction.strip() == INSTRUCTIONS[0]
    assert prompt.length == 100 < len(prompt.prompt_ids) < 110
    longest = max(len(one.prompt_ids) for one in grid.requests.instructions)
    (full,) = {one.slots for one in grid.systems if one.name == "full"}
    assert full >= longest + MOST


def test_an_instruction_of_several_lines_is_asked_whole(vault_build: Build, folder: Path) -> None:
    grid = grid_of(vault_build, folder)
    passage = grid.requests._passages[0]

    def framed(text: Text) -> Text:
        return in_chat(text, lambda user: f"{user} end")

    prompt = instruct(passage, 50, "one\ntwo", 4, grid.requests.tokenizer, framed)
    asked = grid.requests.tokenizer.decode(list(prompt.prompt_ids))
    assert asked.endswith("one\ntwo end")


def test_interrupted_documents_go_on(vault_build: Build, folder: Path, tmp_path: Path) -> None:
    grid, out = grid_of(vault_build, folder, continuation=3), tmp_path / "out"
    whole = report_of(grid, out)
    assert len(whole["answers"]) == len(whole["continuations"]) == 6
    journal = out / "samples.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + grid.records
    journal.write_text("".join(lines[:-5]))
    assert report_of(grid, out) == whole
    assert plots.draw(whole, out) == ["loss_by_slots.png", "loss_by_slots.svg"]
    assert sorted(journal.read_text().splitlines()) == sorted("".join(lines).splitlines())


def test_a_summary_of_answers_has_quartiles_and_shares() -> None:
    def one(equal: int, tokens: int = 10) -> Answer:
        return Answer("s", 8, 100, "a:0", f"ask {equal} {tokens}", tokens, 10, equal, "")

    (row,) = answer_rows([one(2), one(4), one(10), one(10, tokens=12)])
    assert row["answers"] == 4 and row["tokens"] == 10.5
    assert row["equal_quartiles"] == np.percentile([2, 4, 10, 10], (25, 50, 75)).tolist()
    assert row["share"] == pytest.approx(0.65)
    assert row["share_stderr"] == pytest.approx(np.std([0.2, 0.4, 1, 1], ddof=1) / 2, abs=1e-5)
    assert row["whole"] == 0.25 and row["equal"] == [10, 10, 2, 4]  # by instruction
    assert answer_rows([one(3)])[0]["share_stderr"] is None


def test_eval_prints_where_answers_part(
    capsys: pytest.CaptureFixture[str], vault_build: Build, folder: Path
) -> None:
    flags = ["--documents", str(folder), "--passages", "1", "--lengths", "200", "--threads", "1"]
    asked = ["--continuation", "0", "--instructions", *INSTRUCTIONS, "--max-tokens", "4"]
    assert main(["eval", str(vault_build.directory), *flags, *asked]) == 0
    printed = capsys.readouterr().out
    assert "200 tokens of text and an instruction" in printed and "equal tokens" in printed
    assert "snapstream" in printed and "forced" not in printed


def test_an_estimate_counts_answers(vault_build: Build, folder: Path) -> None:
    few, many = (grid_of(vault_build, folder, max_tokens=tokens) for tokens in (1, 400))
    assert estimate(many).seconds > estimate(few).seconds


def test_instructions_need_documents_and_documents_a_measurement() -> None:
    with pytest.raises(UserError, match="--instructions are about --documents, but none"):
        EvalOptions(instructions=INSTRUCTIONS)
    with pytest.raises(UserError, match="leaves nothing to measure"):
        EvalOptions(documents=(Path("texts"),), continuation=0)
    with pytest.raises(UserError, match="--max-tokens 0 is below 1"):
        EvalOptions(max_tokens=0)
    with pytest.raises(UserError, match="--instructions has x twice"):
        EvalOptions(documents=(Path("texts"),), instructions=("x", "x"))
