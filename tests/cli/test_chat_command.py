"""`generate` and `chat` on a build with a chat template: what is asked, shown and kept."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from snapexport.cli.app import main
from snapexport.cli.chat import Conversation
from snapexport.cli.signals import Interrupts
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.runtime.requests.generation_config import recommended_sampling
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.patience import PATIENCE, is_waiting, until
from tests.refused import refused
from tests.runtime.tokenizers_for_tests import byte_level

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}!{% endif %}{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
L_MAX = 64
SHORT = ["--max-tokens", "4"]


@pytest.fixture(scope="module")
def chatting(tiny_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build that takes 64 tokens, one a byte, with a chat template."""
    directory = tmp_path_factory.mktemp("chatting") / "chatting.build"
    shutil.copytree(tiny_build.directory, directory)
    byte_level().save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture(scope="module")
def llm(chatting: Path) -> LLM:
    return LLM(chatting)


def without_template(build: Path, folder: Path) -> Path:
    copied = Path(shutil.copytree(build, folder / "plain.build"))
    (copied / "chat_template.jinja").unlink()
    return copied


Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def ask(chatting: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Talk by lines of a pipe; the objects of `chat --json`."""

    def talk(*lines: str, flags: tuple[str, ...] = (), status: int = 0) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "stdin", StringIO("".join(f"{line}\n" for line in lines)))
        assert main(["chat", str(chatting), "--json", *SHORT, *flags]) == status
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return talk


def test_generate_asks_in_the_template_and_says_so(
    chatting: Path, llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    (expected,) = llm.chat([{"role": "user", "content": "é?"}], SamplingParams(max_tokens=4))
    argv = ["generate", str(chatting), "--prompt", "é?", *SHORT]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert out == expected.text + "\n"
    assert err == "using the build's chat template; --no-chat gives the prompt as it is\n"
    assert main([*argv, "--chat", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert (report["text"], report["prompt_tokens"], err) == (expected.text, 5, "")
    assert report["time_to_first_token_s"] > 0


def test_generate_gives_the_prompt_as_it_is_with_no_chat(
    chatting: Path, llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    (expected,) = llm.generate("é?", SamplingParams(max_tokens=4))
    assert main(["generate", str(chatting), "--no-chat", "--prompt", "é?", *SHORT]) == 0
    assert capsys.readouterr() == (expected.text + "\n", "")


def test_generate_gives_a_system_message(
    chatting: Path, llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é?"}]
    (expected,) = llm.chat(talk, SamplingParams(max_tokens=4))
    assert main(["generate", str(chatting), "--system", "Be brief.", "--prompt", "é?", *SHORT]) == 0
    assert capsys.readouterr().out == expected.text + "\n"


def test_inspect_shows_the_prompt_that_generate_asks(
    chatting: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the template's text, and without it if there is --no-chat."""
    argv = ["inspect", str(chatting), "--prompt", "x" * 40, "--json"]
    for flags, tokens in (["--system", "Be brief."], 40 + 9 + 4), (["--no-chat"], 40):
        assert main([*argv, *flags, "--html", str(tmp_path / "kept.html")]) == 0
        assert json.loads(capsys.readouterr().out)["prompt"]["prompt_tokens"] == tokens
    assert main([*argv, "--system", "Be brief.", "--html", str(tmp_path / "kept.html")]) == 0
    assert "!Be brief.\\u003c/s>xxx" in (tmp_path / "kept.html").read_text()


def test_chat_is_refused_without_a_template(
    chatting: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = without_template(chatting, tmp_path)
    asked = "generate", plain, "--prompt", "a"
    assert "has no chat template" in refused(capsys, *asked, "--chat")
    assert "--system is not supported with" in refused(capsys, *asked, "--system", "a")
    assert "has no chat template" in refused(capsys, "chat", plain)
    assert "is not a build directory" in refused(capsys, "chat", tmp_path / "none")
    with_template = "generate", chatting, "--no-chat", "--system", "a", "--prompt", "a"
    assert "--system is not supported with --no-chat" in refused(capsys, *with_template)


def test_generate_says_how_to_do_without_a_broken_template(
    chatting: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(chatting, tmp_path / "broken.build"))
    (broken / "chat_template.jinja").write_text("{{ raise_exception('no roles') }}")
    assert main(["generate", str(broken), "--prompt", "a"]) == 2
    assert capsys.readouterr().err.endswith("template takes; or add --no-chat\n")


@pytest.mark.slow
def test_generate_needs_no_jinja2_without_a_template(chatting: Path, tmp_path: Path) -> None:
    plain = without_template(chatting, tmp_path)
    for build, extra in ((plain, None), (chatting, "snapexport[serve]")):
        argv = ["generate", str(build), "--prompt", "a", *SHORT]
        code = (
            "import sys; sys.modules['jinja2'] = None\n"
            f"from snapexport.cli.app import main; sys.exit(main({argv!r}))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == (2 if extra else 0), done.stderr
        assert extra is None or extra in done.stderr


def test_chat_goes_on_with_the_conversation_until_reset(ask: Ask, llm: LLM) -> None:
    flags = ("--system", "S")
    first, second, anew = ask("a", "", "b", "/reset", "a", "/exit", "c", flags=flags)
    talk = [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}]
    params = SamplingParams(max_tokens=4)
    (expected,) = llm.chat(talk, params)
    assert (first["text"], first["prompt_tokens"]) == (expected.text, 6)
    assert first["tokens_left"] == L_MAX - 6 - len(first["token_ids"])
    talk += [
        {"role": "assistant", "content": expected.text},
        {"role": "user", "content": "b"},
    ]
    (expected,) = llm.chat(talk, params)
    assert (second["text"], second["finish_reason"]) == (expected.text, expected.finish_reason)
    assert anew["text"] == first["text"]


def test_chat_goes_on_after_a_message_that_is_too_long(ask: Ask) -> None:
    """The refused message is forgotten, and as many tokens as the error names are left."""
    _, long = ask("a", "x" * 80, status=2)
    assert long["error"].startswith("the conversation would have ")
    assert "/reset" in long["hint"]
    left = int(long["error"].split("about ")[1].split()[0])
    _, *failed, answered = ask("a", "x" * 80, "y" * (left + 1), "y" * left, status=2)
    assert ["error" in one for one in failed] == [True, True]
    assert answered["prompt_tokens"] == L_MAX


def test_chat_prints_answers_and_errors_apart(
    chatting: Path,
    llm: LLM,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("/nothing\n/help\na\n" + "x" * 80))
    assert main(["chat", str(chatting), *SHORT]) == 2
    out, err = capsys.readouterr()
    (expected,) = llm.chat([{"role": "user", "content": "a"}], SamplingParams(max_tokens=4))
    assert out == expected.text + "\n"
    assert "there is no command /nothing" in err and "/reset   forget" in err
    assert "error: the conversation would have" in err and "hint: shorten" in err


@pytest.mark.parametrize(
    ("config", "flags", "says"),
    [
        ({}, [], "greedy"),
        ({"temperature": 0.5}, [], "greedy"),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": None},
            ["--top-k", "5"],
            "temperature 0.6 (generation_config.json), top_p 0.9 (generation_config.json), "
            "top_k 5 (--top-k)",
        ),
        ({"do_sample": True}, [], "temperature 1.0 (generation_config.json)"),
        ({"do_sample": True, "temperature": 0.6}, ["--temperature", "0"], "greedy"),
    ],
)
def test_chat_samples_as_the_checkpoint_recommends(
    chatting: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    flags: list[str],
    says: str,
) -> None:
    given = chatting / "generation_config.json"
    former = given.read_text() if given.exists() else "{}"
    given.write_text(json.dumps(config))
    try:
        monkeypatch.setattr(sys, "stdin", StringIO(""))
        assert main(["chat", str(chatting), *flags]) == 0
    finally:
        given.write_text(former)
    assert capsys.readouterr().err == f"conversations of up to {L_MAX} tokens; {says}\n"


@pytest.mark.parametrize("value", ["hot", -1, True, [1]])
def test_a_recommended_value_that_cannot_be_used_names_its_file(
    tmp_path: Path, value: object
) -> None:
    config = {"do_sample": True, "temperature": value}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"generation_config\.json: temperature"):
        recommended_sampling(tmp_path)


def test_an_interrupted_answer_stays_as_far_as_it_came(llm: LLM) -> None:
    talk = Conversation(llm, SamplingParams(max_tokens=40, ignore_eos=True), None)
    shown: list[str] = []
    answer = talk.ask("a", shown.append, lambda: len(shown) == 3)
    assert (len(answer.token_ids), answer.finish_reason) == (3, "cancelled")
    # The message's, the answer's and "b", each closed by a token, and the beginning of an answer.
    expected = len(byte_level().encode(f"a</s>{answer.text}</s>b</s>>").ids)
    assert talk.ask("b", shown.append, lambda: False).prompt_tokens == expected


def test_a_message_interrupted_in_prefill_is_forgotten(llm: LLM) -> None:
    """Between two chunks of 24 tokens."""
    talk = Conversation(llm, SamplingParams(max_tokens=4), None)
    answer = talk.ask("x" * 50, print, lambda: True)
    assert (answer.token_ids, answer.finish_reason) == ([], "cancelled")
    assert talk.ask("b", print, lambda: False).prompt_tokens == 3
    assert not llm.busy


def test_ctrl_c_is_noted_during_work_and_raised_while_waiting_for_input() -> None:
    interrupts = Interrupts()
    former = signal.getsignal(signal.SIGINT)
    with interrupts.as_notes():
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.came
        with pytest.raises(KeyboardInterrupt), interrupts.as_errors():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(PATIENCE)
    assert signal.getsignal(signal.SIGINT) == former


@pytest.mark.slow
def test_chat_on_a_terminal_edits_lines_and_ends_by_ctrl_d(chatting: Path) -> None:
    argv = ["chat", str(chatting), *SHORT]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "snapexport", *argv])
    try:
        read_until(terminal, b"> ")
        os.write(terminal, b"no\x7fy\r")  # "ny", and two tokens of the template's
        assert b"4 prompt tokens" in read_until(terminal, b"tokens left")
        read_until(terminal, b"> ")
        os.write(terminal, b"dropped")
        read_until(terminal, b"dropped")
        time.sleep(0.2)  # Python misses a signal that comes just before it waits for a key
        until(lambda: is_waiting(pid))
        os.write(terminal, b"\x03")
        read_until(terminal, b"\r\n> ")
        os.write(terminal, b"\x04")
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        os.close(terminal)


def read_until(terminal: int, end: bytes, seconds: float = PATIENCE) -> bytes:
    """What the terminal shows up to `end`."""
    shown, last = b"", time.monotonic() + seconds
    while not shown.endswith(end):
        ready = select.select([terminal], [], [], max(0.0, last - time.monotonic()))[0]
        assert ready, f"{end!r} never came: {shown[-500:]!r}"
        shown += os.read(terminal, 1)
    return shown
