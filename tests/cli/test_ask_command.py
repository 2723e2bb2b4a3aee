"""`ask`: prompts about files, what is read again, what is shown, and what is refused."""

import json
import os
import pty
import shutil
import sys
from collections.abc import Callable
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from snapexport.cli.app import main
from snapexport.runtime.engine.bound_graph import BoundGraph
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.builds import build
from tests.cli.test_typed import read_until
from tests.refused import refused

L_MAX, CHUNK = 64, 24
TEXT = "The vault opens at noon, said Ada the baker."
SHORT = "--max-tokens", "4"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where prompts' caches are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "snapexport"


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "report.txt"
    path.write_text(TEXT + "\n")
    return path


@pytest.fixture(scope="module")
def extending(chatting: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of the same prompts that takes longer ones in blocks."""
    out = tmp_path_factory.mktemp("extending") / "extending.build"
    build(checkpoint, out, L_max=L_MAX, L_recent=12, K=8, L_obs=4, prefill_chunk=CHUNK, extend=True)
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(chatting / name, out / name)
    return out


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The graphs that run, by name."""
    names: list[str] = []
    run = BoundGraph.run

    def noting(graph: BoundGraph) -> None:
        names.append(graph._name)
        run(graph)

    monkeypatch.setattr(BoundGraph, "run", noting)
    return names


Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def ask(chatting: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """The objects of `ask --json`. lines: of a pipe."""

    def asked(
        *words: object, lines: str = "", build: Path = chatting, status: int = 0
    ) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "stdin", StringIO(lines))
        assert main(["ask", str(build), *map(str, words), "--json", *SHORT]) == status
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return asked


def expected(build: Path, text: str) -> str:
    (answer,) = LLM(build).chat([{"role": "user", "content": text}], SamplingParams(max_tokens=4))
    return answer.text


def test_a_question_follows_the_document_in_one_message(
    ask: Ask, chatting: Path, document: Path
) -> None:
    (one,) = ask(document, "Who said so?")
    whole = f"{TEXT}\n\nWho said so?"
    assert (one["question"], one["answer"]) == ("Who said so?", expected(chatting, whole))
    assert one["prompt_tokens"] == len(whole) + 2  # and the template's two
    assert one["positions"] == one["prompt_tokens"] + len(one["token_ids"]) - 1
    assert (one["kept_positions"], one["cached_tokens"]) == (24, 0)
    assert 0 < one["time_to_first_token_s"] <= one["seconds"]
    (again,) = ask("--question", "Who said so?", document)
    (after_flags,) = ask(document, "--temperature", "0", "Who said so?")
    assert again["answer"] == after_flags["answer"] == one["answer"]


def test_commands_are_refused_as_questions(ask: Ask, document: Path) -> None:
    lines = "/file x\n /help?\n"
    refusal, answer = ask(document, lines=lines, status=2)
    assert refusal["error"] == "ask has no command /file"
    assert answer["question"] == " /help?"


def test_several_files_come_under_their_names(
    ask: Ask, chatting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [tmp_path / "a b", tmp_path / "c"]
    for name in names:
        name.write_text("x\n")
    monkeypatch.chdir(tmp_path)
    (one,) = ask("a b", "c", "y?")
    whole = "File: a b\n\nx\n\nFile: c\n\nx\n\ny?"
    assert (one["prompt_tokens"], one["answer"]) == (len(whole) + 2, expected(chatting, whole))


def test_a_second_question_runs_only_the_chunks_after_the_shared_ones(
    ask: Ask, chatting: Path, document: Path, runs: list[str]
) -> None:
    """And is answered as in a prompt of its own."""
    lines = "Who said so?\n\nWhen exactly?\n"
    first, second = ask(document, "--no-prompt-cache", lines=lines)
    prefills = runs.count("prefill")
    whole = f"{TEXT}\n\nWhen exactly?"
    assert second["answer"] == expected(chatting, whole)
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, CHUNK)
    both = [-(-one["prompt_tokens"] // CHUNK) for one in (first, second)]
    assert prefills == sum(both) - second["cached_tokens"] // CHUNK


def test_a_later_process_starts_from_what_is_kept(
    ask: Ask, document: Path, folder: Path, tmp_path: Path
) -> None:
    """In the usual folder, in another one, or in none."""
    first, second = (ask(document, "Who said so?")[0] for _ in range(2))
    assert [one["cached_tokens"] for one in (first, second)] == [0, 2 * CHUNK]
    assert first["answer"] == second["answer"] and any(folder.iterdir())
    for flags in (["--no-prompt-cache"], ["--prompt-cache", tmp_path / "other"]):
        (other,) = ask(document, "Who said so?", *flags)
        assert (other["cached_tokens"], other["answer"]) == (0, first["answer"])
    assert any((tmp_path / "other").iterdir())


def test_a_usual_folder_that_cannot_be_written_is_left_out(
    ask: Ask, document: Path, folder: Path, capsys: pytest.CaptureFixture[str], chatting: Path
) -> None:
    folder.parent.mkdir()
    folder.write_text("a file")
    (one,) = ask(document, "Who said so?")
    assert one["answer"]
    given = "--prompt-cache", f"{folder}/x"
    assert str(folder) in refused(capsys, "ask", chatting, document, *given, "Who?")


def test_standard_input_is_a_document(
    ask: Ask,
    chatting: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for words in (["-", "so?"], ["-"]):
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(TEXT.encode())))
        status = main(["ask", str(chatting), *words, "--json", *SHORT])
        assert status == (0 if len(words) == 2 else 2)
    out, err = capsys.readouterr()
    assert json.loads(out)["answer"] == expected(chatting, f"{TEXT}\n\nso?")
    assert "a question is missing, and standard input is a document" in err


def test_questions_of_a_pipe_go_on_after_one_that_is_too_long(ask: Ask, document: Path) -> None:
    long = "x" * L_MAX
    failed, answered = ask(document, lines=f"{long}\nso?\n", status=2)
    assert failed["question"] == long and "the build takes 64" in failed["error"]
    assert answered["answer"]


def test_answers_end_with_what_was_kept(
    chatting: Path, document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["ask", str(chatting), str(document), "Who?", "--ignore-eos", *SHORT]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert out == expected(chatting, f"{TEXT}\n\nWho?") + "\n"
    assert err == "kept 24 of 55 positions, 12 KiB\n"
    assert main([*argv, "--baseline"]) == 0
    assert capsys.readouterr().err == "kept all 55 positions, 32 KiB (room for 64)\n"


def test_a_document_beyond_l_max_is_refused_before_a_model_is_loaded(
    chatting: Path,
    document: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document.write_text(TEXT * 2)
    monkeypatch.setattr(LLM, "__init__", None)
    argv = "ask", chatting, document, "Who said so?"
    tokens = 2 * len(TEXT) + len("\n\nWho said so?") + 2
    assert refused(capsys, *argv) == (
        f"error: files and question make {tokens} tokens, the build takes 64"
    )
    assert main([str(word) for word in argv]) == 2
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint.startswith("hint: give fewer files, or a part of one, or build again with --L-max")
    assert hint.endswith("or with --extend, which takes prompts beyond it block by block")


def test_a_document_beyond_l_max_goes_in_blocks_where_the_build_has_them(
    ask: Ask, extending: Path, document: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    document.write_text(TEXT * 3)
    (one,) = ask(document, "Who said so?", build=extending)
    assert one["prompt_tokens"] > L_MAX and {one.partition(".")[0] for one in runs} == {
        "extend",
        "decode",
    }
    alone = LLM(extending, prefill="blocks")
    talk = [{"role": "user", "content": f"{TEXT * 3}\n\nWho said so?"}]
    (answer,) = alone.chat(talk, SamplingParams(max_tokens=4))
    assert one["answer"] == answer.text
    document.write_text(TEXT)
    runs.clear()
    ask(document, "Who said so?", build=extending)
    assert "extend" not in runs


def test_without_a_template_the_prompt_is_as_it_is(
    ask: Ask, chatting: Path, document: Path
) -> None:
    (one,) = ask(document, "Who?", "--no-chat")
    assert one["prompt_tokens"] == len(f"{TEXT}\n\nWho?")


@pytest.mark.slow
def test_questions_are_typed_until_an_empty_line(chatting: Path, document: Path) -> None:
    argv = ["ask", str(chatting), str(document), "--no-prompt-cache", *SHORT]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "snapexport", *argv])
    try:
        read_until(terminal, b"> ")
        for question in (b"Who said so?\r", b"When?\r"):
            os.write(terminal, question)
            shown = read_until(terminal, b"of them")
            assert b"kept 24 of" in shown and b"24 of them" in shown  # the document was read before
            read_until(terminal, b"> ")
        os.write(terminal, b"\r")
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        os.close(terminal)
