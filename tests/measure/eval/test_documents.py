"""Continuations of documents under each cache, and needles hidden in documents."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from snapexport.compare.documents import lines_of, manual, passages, read_documents
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.measure.eval.grid import Grid
from snapexport.measure.eval.records import Continuation, continuation_rows
from snapexport.measure.eval.requests import in_chat
from snapexport.measure.eval.sample import Text
from snapexport.measure.eval.tasks import TASKS, tasks_in
from snapexport.measure.options import EvalOptions
from snapexport.runtime.requests.llm import LLM
from snapexport.vault import CHECKPOINT
from tests.measure.eval.builds import documents_grid, report_of, vault_grid

TOKENS = 9


def grid_of(build: Build, folder: Path, **choices: object) -> Grid:
    return documents_grid(build, folder, **{"passages": 3, "continuation": TOKENS} | choices)


def test_documents_are_measured_as_decode_scores_them(vault_build: Build, folder: Path) -> None:
    """Against LLM.score, which forces one continuation of one system."""
    grid = grid_of(vault_build, folder, budgets=(64,))
    report = report_of(grid)
    assert not report["results"] and grid.records == 3 * 2 * 3
    rows = {(row["system"], row["length"]): row for row in report["continuations"]}
    llm = LLM(vault_build.directory, threads=1)
    for length in (100, 200):
        losses = []
        for prompt in (one for one in grid.requests.prompts if one.length == length):
            score = llm.score([prompt.prompt_ids], [prompt.continuation_ids])[0]
            losses.append(-np.mean(score.logprobs[1:]))
        assert rows["snapstream", length]["nll"] == pytest.approx(np.mean(losses), abs=1e-4)
        assert rows["full", length]["loss"] == rows["full", length]["kl"] == 0
        assert rows["full", length]["agreement"] == 1
        assert rows["streaming", length]["kl"] > 0
        assert rows["streaming", length]["tokens"] == 3 * TOKENS


def test_a_cache_that_holds_the_prompt_is_not_measured(vault_build: Build, folder: Path) -> None:
    report = report_of(grid_of(vault_build, folder, budgets=(64, 128)))
    measured = {(row["slots"], row["length"]) for row in report["continuations"]}
    assert measured >= {(64, 100), (64, 200), (128, 200)} and (128, 100) not in measured


def test_passages_come_from_all_documents_and_do_not_overlap(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    documents = read_documents([folder])
    found = passages(documents, tokenizer, 300, most=4)
    assert [one.name for one in found] == ["0.txt:0", "1.txt:0", "0.txt:299", "1.txt:299"]
    assert {len(one.ids) for one in found} == {300}
    first, second = found[0].ids, found[2].ids
    bos = first[:1]
    assert second[:1] == bos
    assert first + second[1:] == tuple(tokenizer.encode(documents[0].text).ids[:599])


def test_documents_of_one_name_are_distinguished(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "0.txt").write_text("another")
    again = read_documents([folder, tmp_path / "0.txt", folder / "0.txt"])
    assert len({one.name for one in again}) == len(read_documents([folder])) + 1 == len(again)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    with pytest.raises(UserError, match="special tokens leave no text in 1 tokens"):
        passages(again, tokenizer, 1, most=1)


def test_wrong_documents_are_refused(vault_build: Build, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    (tmp_path / "blank").write_text("\n\n")
    cases = {
        "has no text files": {"documents": (tmp_path / "empty",)},
        "is not UTF-8": {"documents": (tmp_path / "latin",)},
        "cannot read": {"documents": (tmp_path / "missing",)},
        "no document has": {"documents": (tmp_path / "blank",)},
        "compares caches with the full one": {"policies": ("snapstream",)},
    }
    for message, choices in cases.items():
        given = {"documents": (folder,), "policies": ("full", "snapstream")} | choices
        with pytest.raises(UserError, match=message):
            vault_grid(vault_build, tasks=None, lengths=(100,), **given)


def test_needles_are_hidden_in_the_documents(folder: Path) -> None:
    tasks = tasks_in(lines_of(read_documents([folder])))
    text = tasks["phrase_4"].texts(0, None)(12)
    known = set((folder / "0.txt").read_text().splitlines())
    known |= set((folder / "1.txt").read_text().splitlines())
    noise = [line for line in text.context.splitlines()[1:] if line + "\n" != text.needle]
    assert len(noise) == 12 and set(noise) <= known
    assert tasks["kv"] == replace(TASKS["kv"], prose=tasks["kv"].prose)
    assert tasks["vault"] is TASKS["vault"]


def test_a_text_in_chat_form_ends_with_the_tokens_of_the_template() -> None:
    text = Text("Intro.\nNeedle.\n", "Needle.\n", "What is it?\nIt is", ("x",), " x")
    asked = in_chat(text, lambda user: f"<u>{user}</u><a>")
    assert asked.context == "<u>Intro.\nNeedle.\n"
    assert asked.question == "What is it?</u><a>"
    assert asked.in_chat and asked.reference == "It is x"
    without = in_chat(replace(text, question="key"), lambda user: f"<u>{user}</u><a>")
    assert without.question == "key</u><a>"
    with pytest.raises(UserError, match="as it is"):
        in_chat(text, lambda user: "<u>other</u>")


def test_a_template_may_strip_a_message() -> None:
    text = Text("\n  Intro.\n", "Intro.\n", "What is it?", ("x",), " x")
    asked = in_chat(text, lambda user: f"<u>{user.strip()}</u><a>")
    assert (asked.context, asked.question) == ("<u>Intro.\n", "What is it?</u><a>")


def test_a_sample_in_chat_form_writes_no_special_tokens_of_its_own() -> None:
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    text = Text("a b\n", "a b\n", "c", ("d",), " d", in_chat=True)
    assert text.opening(tokenizer) == tuple(tokenizer.encode("a b\n", add_special_tokens=False).ids)


def test_a_summary_of_continuations_has_means_and_standard_errors() -> None:
    one = Continuation("s", 8, 100, "a:0", 4, 2.0, 1.5, 0.2, 0.75)
    rows = continuation_rows([replace(one, passage="b:0", nll=3.0), one])
    assert len(rows) == 1
    assert (rows[0]["passages"], rows[0]["tokens"]) == (2, 8)
    assert rows[0]["loss"] == pytest.approx(1.0) and rows[0]["loss_stderr"] == pytest.approx(0.5)
    assert rows[0]["losses"] == [0.5, 1.5]  # in the order of the passages' names


def test_needles_are_in_pythons_manual_unless_something_else_is_chosen(vault_build: Build) -> None:
    def texts(**choices: Any) -> set[str]:
        options = {"tasks": ("niah_single", "vault"), "lengths": (384,), "depths": (0.5,)} | choices
        grid = vault_grid(vault_build, **options)
        return {grid.requests.sample(cell).context for cell in grid.requests.cells()}

    prose = manual().text
    assert len(prose.split()) > 10_000 and prose.isascii()
    in_manual, in_sentences = texts(), texts(haystack="sentences")
    assert len(in_manual & in_sentences) == 1  # the vault's
    for text in in_manual - in_sentences:
        assert sum(line in prose for line in text.splitlines()) > 5
    assert all("The kettle hums" in text for text in in_sentences - in_manual)


def test_a_python_without_a_manual_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match="came without its manual"):
        manual()


def test_a_haystack_beside_documents_is_refused() -> None:
    with pytest.raises(UserError, match="--haystack manual is not supported with --documents"):
        EvalOptions(documents=(Path("texts"),), haystack="manual")
