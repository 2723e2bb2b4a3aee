"""`generate` and `chat` on a build with a chat template: what is asked, shown and kept."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from snapexport.cli.app import main
from snapexport.cli.chat import Conversation
from snapexport.errors import UserError
from snapexport.runtime.requests.generation_config import recommended_sampling
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from snapexport.serving.options import ServeOptions
from snapexport.serving.serve import Defaults
from tests.refused import refused
from tests.runtime.tokenizers_for_tests import byte_level

L_MAX = 64
SHORT = ["--max-tokens", "4"]


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
    template, kept = err.splitlines()
    assert template == "using the build's chat template; --no-chat gives the prompt as it is"
    assert kept == "kept all 8 positions, 12 KiB (room for 24)"
    assert main([*argv, "--chat", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert (report["text"], report["prompt_tokens"], err) == (expected.text, 5, "")
    assert report["time_to_first_token_s"] > 0


def test_generate_gives_the_prompt_as_it_is_with_no_chat(
    chatting: Path, llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    (expected,) = llm.generate("é?", SamplingParams(max_tokens=4))
    assert main(["generate", str(chatting), "--no-chat", *SHORT, "é?"]) == 0
    out, err = capsys.readouterr()
    assert out == expected.text + "\n" and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "kept 24 of 53 positions, 12 KiB"),  # keys and values of 2 layers and 2 heads of 16
        (["--baseline"], "kept all 53 positions, 32 KiB (room for 64)"),
    ],
)
def test_generate_ends_with_what_the_cache_kept(
    chatting: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    argv = ["generate", str(chatting), "--no-chat", "--ignore-eos", *flags, *SHORT, "x" * 50]
    assert main(argv) == 0
    assert capsys.readouterr().err.splitlines()[-1] == says
    assert main([*argv, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["positions"], report["kept_positions"]) == (53, 53 if flags else 24)
    assert report["cache_bytes"] == 2 * 2 * 2 * 16 * 4 * (64 if flags else 24)


@pytest.mark.parametrize("command", ["generate", "inspect", "diff"])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a", "--prompt", "b"], "error: two prompts were given"),
        (["--prompt-file", "-", "--system", "s", "a"], "error: two prompts were given"),
        (["What", "is", "it"], "hint: put a prompt of several words in quotes"),
        (["--system", "s"], "prompt"),
    ],
)
def test_one_prompt_in_quotes_is_given(
    chatting: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    words: list[str],
    says: str,
) -> None:
    assert main([command, str(chatting), *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "tokens"), [([], 5), (["--no-chat"], 3)])
def test_diff_asks_as_generate_does(
    chatting: Path, capsys: pytest.CaptureFixture[str], flags: list[str], tokens: int
) -> None:
    assert main(["diff", str(chatting), "--steps", "2", "--json", *flags, "abc"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {one["prompt_length"] for one in report["differences"]} == {tokens}


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
            f"from snapexport.cli.app import main; status = main({argv!r})\n"
            f"assert {extra is None} or main(['chat', {str(build)!r}]) == 2\n"
            f"assert ('onnxruntime' in sys.modules) == {extra is None}; sys.exit(status)"
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


def test_chat_sends_a_file_with_the_question_at_its_end(ask: Ask, tmp_path: Path) -> None:
    name = tmp_path / "two words.txt"
    name.write_text("abc\n")
    (tmp_path / "empty").touch()
    spaced = str(name).replace(" ", "\\ ")
    alone, *asked, failed, folder, empty, unknown, escaped = ask(
        f"/file {name}",
        "/reset",
        *(
            line
            for q in (f"{name} q?", f'"{name}" q?', f"{spaced}  q?")
            for line in (f"/file {q}", "/reset")
        ),
        f"/file {tmp_path}/none.txt",
        f"/file {tmp_path}",
        f"/file {tmp_path}/empty",
        "/flie x",
        " /flie x",
        status=2,
    )
    assert alone["prompt_tokens"] == 4 + 2  # the text's line break, and the template's two
    assert {one["prompt_tokens"] for one in asked} == {len("abc\n\nq?") + 2}
    assert failed["error"] == f"cannot read {tmp_path}/none.txt: No such file or directory"
    assert "is not a file" in folder["error"] and "is empty" in empty["error"]
    assert unknown["error"] == "there is no command /flie" and "mean /file?" in unknown["hint"]
    assert escaped["prompt_tokens"] == len("/flie x") + 2


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
    assert "there is no command /nothing" in err and "/reset       forget" in err
    assert "error: the conversation would have" in err and "hint: shorten" in err


@pytest.mark.parametrize(
    ("config", "flags", "says"),
    [
        ({}, [], "greedy"),
        ({"temperature": 0.5}, [], "temperature 0.5 (generation_config.json)"),
        ({"temperature": 0.5}, ["--no-generation-config"], "greedy"),
        (
            {"temperature": 0, "top_k": 4, "repetition_penalty": 1.1},
            [],
            "greedy, repetition_penalty 1.1 (generation_config.json)",
        ),
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
def test_generate_chat_serve_and_llm_sample_as_the_checkpoint_recommends(
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
        assert capsys.readouterr().err == f"conversations of up to {L_MAX} tokens; {says}\n"
        assert main(["generate", str(chatting), *SHORT, *flags, "a"]) == 0
        noted = f"sampling: {says}" in capsys.readouterr().err.splitlines()
        assert noted == ("generation_config.json" in says)
        usual, served = (
            LLM(chatting).get_default_sampling_params(),
            Defaults.of(ServeOptions(chatting)),
        )
        assert usual == SamplingParams(**served.values)
    finally:
        given.write_text(former)


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
