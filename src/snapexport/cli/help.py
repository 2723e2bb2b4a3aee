"""Shows a command's help in 80 columns: the usual flags by --help, all of them by --help-all.

Knows which flags of a command are usual; flags whose group is "cache" or "advanced" never are.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import rich_argparse
from rich.containers import Lines
from rich.text import Text

from snapexport.cli.flags import GROUPS, WRITTEN
from snapexport.errors import UserError
from snapexport.files.nearby import closest, did_you_mean, folders_with

WIDEST = 100
LONGEST_CHOICES = 36
"""Characters of a flag's choices beside its name; more of them follow its help text."""

USUAL = {
    "generate": "build prompt prompt_file chat system max_tokens temperature top_p seed stop "
    "backend baseline json",
    "chat": "build system max_tokens temperature top_p seed prompt_cache backend baseline json",
    "ask": "build files question chat system max_tokens temperature top_p seed backend baseline "
    "json",
    "eval": "build tasks lengths samples policies budgets documents instructions backend minutes "
    "out json",
    "bench": "build contexts batches baseline backend threads out json",
    "engine": "build compute_capability graphs plugins strip_weights workspace overwrite estimate "
    "json",
    "triton": "build out name max_pending device copy overwrite",
    "serve": "build host port api_key allowed_host name max_pending memory threads parked_rows "
    "prompt_cache backend max_tokens json",
    "dynamo": "words name role discovery prefill decode port",
}
"""The flags in a command's --help, by their names in Python. Other commands show every flag that is
in none of GROUPS."""


_ELSEWHERE = {
    "ctx-size": "--L-max",
    "max-model-len": "--L-max",
    "max-length": "--L-max --max-tokens",
    "max-new-tokens": "--max-tokens",
    "n-predict": "--max-tokens",
    "n": "--max-tokens",
    "c": "--L-max",
    "temp": "--temperature",
    "output": "--out",
    "o": "--out",
    "m": "--model",
    "p": "--prompt",
    "f": "--prompt-file",
    "file": "--prompt-file",
    "sys": "--system",
}
"""{flag of llama.cpp, vLLM or transformers: ours, the first that a command has}"""


class HelpFormatter(rich_argparse.RichHelpFormatter):
    """Fills paragraphs up to the terminal's width, and leaves commands as they are.

    A flag with many choices shows them in its help text.
    """

    help_markup = False
    text_markup = False
    group_name_formatter = staticmethod(  # type: ignore[assignment]  # taken for a method
        lambda title: title[:1].upper() + title[1:]
    )

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **settings)
        self._width = min(self._width, WIDEST - 2)

    def _metavar_formatter(
        self, action: argparse.Action, default_metavar: str
    ) -> Callable[[int], tuple[str, ...]]:
        if not _choices_in_text(action):
            return super()._metavar_formatter(action, default_metavar)
        return lambda count: ("NAME",) * count

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = super()._get_help_string(action) or ""
        explained = all(f"{choice}: " in text for choice in action.choices or ())
        if explained or not _choices_in_text(action):
            return text
        return f"{text}. One of {_choices(action)}"

    def _rich_fill_text(self, text: Text, width: int, indent: Text) -> Text:
        lines = Lines()
        for paragraph in text.split("\n\n"):
            if "\n  " in paragraph.plain:
                lines.extend(paragraph.split())
            else:
                lines.extend(self._rich_split_lines(paragraph, width))
            lines.append(Text())
        return Text("\n").join(indent + line for line in lines) + "\n"


class Parser(argparse.ArgumentParser):
    """Raises a UserError for a wrong argument, and shows rare flags by --help-all only."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, allow_abbrev=False, **settings)
        self._rare: list[argparse.Action] = []
        self.gathers = ""
        """Name of a list of arguments, of which some may follow flags."""
        self._every = self.add_argument(
            "--help-all", action=_HelpAll, dest="help", help=argparse.SUPPRESS
        )

    def hide_rare(self, command: str) -> None:
        """Leave the flags of a command that are not usual out of --help."""
        grouped = [g._group_actions for g in self._action_groups if g.title in GROUPS]
        self._rare = [action for actions in grouped for action in actions]
        if command in USUAL:
            usual = {"help", *USUAL[command].split()}
            self._rare = [action for action in self._actions if action.dest not in usual]
        if self._rare:
            self._every.help = "show every flag and exit"

    def format_help(self, every: bool = False) -> str:
        """The help text; every: with the flags that are not usual."""
        hidden = [] if every else self._rare
        shown = {action.metavar for action in self._actions if action not in hidden}
        units = "; ".join(text for metavar, text in WRITTEN.items() if metavar in shown)
        self.epilog = f"{units}." if units else None
        if not hidden:
            return super().format_help()
        texts = [action.help for action in self._rare]
        count = f"{len(texts)} more flag{'s' if len(texts) > 1 else ''}"
        more = f"`{self.prog} --help-all` shows {count}."
        self.epilog = f"{self.epilog}\n\n{more}" if self.epilog else more
        for action in self._rare:
            action.help = argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            for action, text in zip(self._rare, texts, strict=True):
                action.help = text

    def error(self, message: str) -> NoReturn:
        example = ""
        for kind, usual in ("int", "a whole number, such as 8"), ("float", "a number, such as 0.7"):
            message = re.sub(f"invalid {kind} value: (.*)", rf"\1 is not {usual}", message)
        if message.endswith(": BUILD") and (builds := folders_with(Path(), "manifest.json")):
            example = f"name one, such as {builds[0]}; "
        raise UserError(message, f"{example}see `{self.prog} --help`")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuses unknown flags before flags that lack, and here, where the command is known."""
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            end = words.index("--") if "--" in words else len(words)
            unknown = [word for word in words[:end] if self._is_new(word)]
            self._require_known(unknown[:1])
            self._require_flag(words)
        found, rest = super().parse_known_args(words, namespace)
        if self.gathers and all(word == "-" or not word.startswith("-") for word in rest):
            getattr(found, self.gathers).extend(rest)
            rest = []
        self._require_known(rest)
        return found, rest

    def _require_flag(self, words: Sequence[str]) -> None:
        """Refuse a model that is named without --model."""
        takes = "--model" in self._option_string_actions and not self._get_positional_actions()
        if takes and words and not words[0].startswith("-"):
            raise UserError(
                f"unrecognized arguments: {words[0]}", f"did you mean --model {words[0]}?"
            )

    def _is_new(self, word: str) -> bool:
        """Whether a word looks like a flag that does not exist."""
        is_flag = re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", word, re.DOTALL)
        return bool(is_flag) and word.partition("=")[0] not in self._option_string_actions

    def _require_known(self, rest: Sequence[str]) -> None:
        if not rest:
            return
        name = rest[0].partition("=")[0]
        known = self._option_string_actions
        flag = _ELSEWHERE.get(name.lstrip("-").replace("_", "-"))
        found = next((one for one in (flag or "").split() if one in known), closest(name, known))
        hint = did_you_mean(found if name.startswith("-") else None)
        if not name.startswith("-") and any(one.dest == "prompt" for one in self._actions):
            hint = "put a prompt of several words in quotes; "
        raise UserError(
            f"unrecognized arguments: {' '.join(rest)}", f"{hint}see `{self.prog} --help`"
        )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses a value that is none of a flag's choices."""
        if action.choices is not None and value not in action.choices:
            flag = action.option_strings[0] if action.option_strings else str(action.metavar)
            raise UserError(
                f"{flag} '{value}' is not known",
                f"{did_you_mean(closest(str(value), map(str, action.choices)))}choose from "
                f"{_choices(action)}",
            )


class _HelpAll(argparse.Action):
    """Prints the whole help and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        print(parser.format_help(every=True), end="")
        parser.exit()


def _choices(action: argparse.Action) -> str:
    return ", ".join(map(str, action.choices or ()))


def _choices_in_text(action: argparse.Action) -> bool:
    return bool(action.option_strings) and len(_choices(action)) > LONGEST_CHOICES
