"""Talk with a build: each line is a message, and the conversation goes on until /reset.

/help lists the commands. Ctrl-C ends an answer, Ctrl-D ends the program. Standard input may be a
pipe. Sampling follows the checkpoint's generation_config.json, unless flags say otherwise. If the
build can take further tokens onto a compressed cache, a turn costs only its own tokens, and a
conversation may be longer than L_max (docs/concepts/conversations.md).

examples:
  snapexport chat qwen.build
  snapexport chat qwen.build --system "Answer in one sentence." --top-p 0.9
  cat questions.txt | snapexport chat qwen.build --json
"""

import argparse
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapexport.cli import flags, generate
from snapexport.cli.console import ERR
from snapexport.cli.generate import SAMPLING, Answer, stream
from snapexport.cli.prompt import SYSTEM, system_message
from snapexport.cli.signals import Interrupts
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError, flag_of
from snapexport.runtime.chat.chat_prompts import require_template
from snapexport.runtime.requests.generation_config import CONFIG, FIELDS, recommended_sampling
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import Message, PromptTooLongError
from snapexport.runtime.requests.request import Request, SamplingParams

HELP = "talk with a build"

FROM_CONFIG = "(default: generation_config.json's, else {})"
ANSWER_TOKENS = 1024
DEFAULTS = {"max_tokens": ANSWER_TOKENS, **dict.fromkeys(FIELDS)}
COMMANDS = """/reset   forget the conversation, but for the system message
/exit    end the program, as Ctrl-D does
/help    show this
Ctrl-C   end the answer"""
KNOWN = ("/exit", "/help", "/reset")
_COMMAND = re.compile(r"/\w+")
NEW = "start anew with /reset"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the system message, and the fields of SamplingParams."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    parser.add_argument("--system", metavar="TEXT", help=SYSTEM)
    usual = SamplingParams()
    helps = {
        name: f"{SAMPLING[name]} {FROM_CONFIG.format(getattr(usual, name))}" for name in FIELDS
    }
    helps["max_tokens"] = f"most tokens of an answer (default: {ANSWER_TOKENS})"
    generate.add_sampling(parser, SAMPLING | helps)
    parser.set_defaults(**DEFAULTS)
    generate.add_running(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object for each answer")


def run(arguments: argparse.Namespace) -> int:
    """Answer until the input ends; 2 if an answer to piped input failed."""
    build = Build.open(arguments.build)
    require_template(build.directory)
    sampling, sources = _sampling(arguments)
    params = SamplingParams(**sampling, stop=tuple(arguments.stop))
    parked_rows = _parked_rows(build.manifest, arguments.baseline)
    model = generate.open_llm(arguments, parked_rows=parked_rows)
    conversation = Conversation(model, params, arguments.system)
    ERR.print(f"conversations of up to {conversation.longest:,} tokens; {sources}", soft_wrap=True)
    show = _Json() if arguments.json else _Text()
    interrupts = Interrupts()
    session = _Session(conversation, show, interrupts)
    if sys.stdin.isatty():
        ERR.print("/help lists the commands, Ctrl-D ends")
        with interrupts.as_notes():
            session.run(_typed_messages(interrupts))
        return 0
    return 2 if session.run(_piped_messages()) else 0


def _parked_rows(manifest: Manifest, baseline: bool) -> int:
    """One conversation's row, where the build can park it."""
    extends = any(graph_of(name).kind.extends_rows for name in manifest.graphs)
    return int(extends and not baseline and manifest.tensor_parallel == 1)


class Conversation:
    """The messages so far, and the answer to the next one. A turn that fails changes nothing.

    Knows no terminal and no flags.
    """

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm, self._params = llm, params
        self._start: list[Message] = system_message(system)
        self._messages = self._start

    @property
    def longest(self) -> int:
        """Tokens that a conversation may have before an answer."""
        return self._llm.executor.limits.longest_prompt

    def reset(self) -> None:
        """Forget all but the system message."""
        self._messages = self._start

    def ask(
        self, text: str, show: Callable[[str], None], interrupted: Callable[[], bool]
    ) -> Answer:
        """Stream the answer to a message of the user's. Raises UserError.

        An interrupted answer stays in the conversation as far as it came.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        answer = stream(self._llm, self._read(messages, text), show, interrupted)
        if answer.first is not None:
            self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        return answer

    def tokens_left(self, answer: Answer) -> int:
        """About how many tokens are left for the next message."""
        return max(0, self.longest - answer.prompt_tokens - len(answer.token_ids))

    def _read(self, messages: list[Message], text: str) -> Request:
        try:
            return self._llm.read_chat(messages, self._params)
        except PromptTooLongError as error:
            raise self._too_long(error, text) from None

    def _too_long(self, error: PromptTooLongError, text: str) -> UserError:
        """The error in terms of the conversation, with the room that is left."""
        assert self._llm.tokenizer is not None
        message = len(self._llm.tokenizer.encode(text, add_special_tokens=False).ids)
        left = error.most - (error.tokens - message)
        known = self._messages is not self._start
        what = "the conversation would have" if known else "the message makes a prompt of"
        room = f"about {left:,} tokens are left" if left > 0 else "no token is left"
        hint = f"shorten the message, or {NEW}" if left > 0 else NEW
        return UserError(
            f"{what} {error.tokens:,} tokens, the build takes {error.most:,}: {room}",
            hint if known else error.hint,
        )


@dataclass(frozen=True)
class _Session:
    conversation: Conversation
    show: "_Text | _Json"
    interrupts: Interrupts

    def run(self, messages: Iterable[str]) -> int:
        """Answer each message; the number of answers that failed."""
        failed = 0
        for message in messages:
            if message == "/exit":
                break
            if message == "/reset":
                self.conversation.reset()
            elif message == "/help":
                ERR.print(COMMANDS)
            else:
                failed += not self._answer(message)
        return failed

    def _answer(self, message: str) -> bool:
        self.interrupts.came = False
        try:
            answer = self.conversation.ask(message, self.show.delta, lambda: self.interrupts.came)
        except UserError as error:
            self.show.error(error)
            return False
        self.show.end(answer, self.conversation.tokens_left(answer))
        return True


class _Text:
    """Shows answers as text, and errors on standard error."""

    def delta(self, text: str) -> None:
        print(text, end="", flush=True)

    def end(self, answer: Answer, left: int) -> None:
        print(flush=True)
        answer.print_times(f"about {left:,} tokens left")

    def error(self, error: UserError) -> None:
        ERR.print(f"error: {error.message}\n\nhint: {error.hint}", soft_wrap=True)


class _Json:
    """Shows each answer, or its error, as a line of JSON."""

    def delta(self, text: str) -> None:
        """Show nothing: the text comes with the end."""

    def end(self, answer: Answer, left: int) -> None:
        print(json.dumps(answer.report() | {"tokens_left": left}), flush=True)

    def error(self, error: UserError) -> None:
        print(json.dumps({"error": error.message, "hint": error.hint}), flush=True)


def _sampling(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Fields of SamplingParams: the flags' before the checkpoint's. And where each comes from."""
    values = flags.values(arguments, SAMPLING)
    given = {name: value for name, value in values.items() if value is not None}
    fields = recommended_sampling(arguments.build) | given
    if not fields.get("temperature"):
        return fields, "greedy"
    sources = [
        f"{name} {fields[name]} ({flag_of(name) if name in given else CONFIG})"
        for name in FIELDS
        if name in fields
    ]
    return fields, ", ".join(sources)


def _typed_messages(interrupts: Interrupts) -> Iterator[str]:
    """Lines from a terminal, which can be edited. Ctrl-C drops a line, Ctrl-D ends."""
    with suppress(ImportError):  # some Pythons lack it, and lines can't be edited then
        import readline  # noqa: F401
    _accept_any_bytes()
    while True:
        try:
            with interrupts.as_errors():
                line = input("> " if sys.stdout.isatty() else "")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        yield from _messages(line)


def _piped_messages() -> Iterator[str]:
    """Lines of standard input."""
    _accept_any_bytes()
    for line in sys.stdin:
        yield from _messages(line)


def _messages(line: str) -> Iterator[str]:
    """The line's message; none for an empty line, or a command that does not exist."""
    text = line.strip()
    if text in KNOWN or not _COMMAND.fullmatch(text):
        if text:
            yield text
        return
    ERR.print(f"there is no command {text}: /help lists them")


def _accept_any_bytes() -> None:
    """A conversation goes on after bytes that are not UTF-8."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
