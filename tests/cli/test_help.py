"""Help fits into 80 columns: --help shows the usual flags, and --help-all every flag."""

import argparse
import shlex

import pytest

from snapexport.cli.app import COMMANDS, main, parser
from snapexport.cli.help import USUAL, Parser
from tools.cli_reference import subcommands

SHOWN = {
    "ask": "build files question chat system max_tokens temperature top_p seed backend baseline "
    "json",
    "plan": "memory model L_max policy kv_budget batch dtype weights target extend prefill_budget "
    "json",
    "build": "model out L_max policy kv_budget batch tokens_per_step dtype weights target baseline "
    "verify overwrite adapter calibrate extend prefill_budget json",
    "generate": "build prompt prompt prompt_file chat system max_tokens temperature top_p seed "
    "stop backend baseline json",
    "chat": "build system max_tokens temperature top_p seed prompt_cache backend baseline json",
    "eval": "build tasks lengths samples policies budgets documents instructions backend minutes "
    "out json",
    "bench": "build contexts batches baseline backend threads out json",
    "engine": "build compute_capability workspace graphs plugins strip_weights overwrite estimate "
    "json",
    "triton": "build out name max_pending device copy overwrite",
    "serve": "build host port api_key allowed_host name max_pending memory threads parked_rows "
    "prompt_cache backend max_tokens json",
    "dynamo": "words name role discovery prefill decode port",
}
"""What the other commands show is everything that they have."""


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def command(name: str) -> Parser:
    found = subcommands(parser())[name]
    assert isinstance(found, Parser)
    return found


def names(action: argparse.Action) -> list[str]:
    return action.option_strings or [str(action.metavar)]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_no_wider_than_80_columns(name: str) -> None:
    one = command(name)
    for text in one.format_help(), one.format_help(every=True):
        assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_usual_flags_and_help_all_every_flag(name: str) -> None:
    one = command(name)
    short, whole = one.format_help(), one.format_help(every=True)
    flags = [action for action in one._actions if action.dest != "help"]
    shown = [a.dest for a in flags if any(f"\n  {word}" in short for word in names(a))]
    assert sorted(shown) == sorted(
        SHOWN[name].split() if name in SHOWN else [f.dest for f in flags]
    )
    assert [a.dest for a in flags if not any(f"\n  {word}" in whole for word in names(a))] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_at_its_end_how_many_flags_help_all_adds(name: str) -> None:
    one = command(name)
    hidden = len(one._actions) - 2 - len(SHOWN[name].split()) if name in SHOWN else 0
    more = f"`snapexport {name} --help-all` shows {hidden} more flag{'s' * (hidden > 1)}."
    last = one.format_help().rstrip().splitlines()[-1]
    assert last == more if hidden else "--help-all" not in one.format_help()


@pytest.mark.parametrize("name", USUAL)
def test_usual_flags_are_flags_of_their_command(name: str) -> None:
    assert set(USUAL[name].split()) <= {action.dest for action in command(name)._actions}


def test_help_all_prints_every_flag_and_ends_with_status_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for flag, shows in (("--help", False), ("--help-all", True)):
        with pytest.raises(SystemExit) as end:
            main(["build", flag])
        assert end.value.code == 0
        assert ("--pool-kernel" in capsys.readouterr().out) == shows


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_help_are_commands_that_parse(name: str) -> None:
    description = command(name).description or ""
    lines = description.partition("\n\nexample")[2].replace("\\\n", " ").splitlines()[1:]
    calls = [line.rpartition("| ")[2] for line in lines]
    assert calls
    for call in calls:
        parser().parse_args(shlex.split(call)[1:])  # raises UserError, which names the argument


def test_a_flag_with_many_choices_lists_them_in_its_text() -> None:
    text = " ".join(command("serve").format_help(every=True).split())
    assert "--tool-parser NAME" in text and "One of auto, none" in text
