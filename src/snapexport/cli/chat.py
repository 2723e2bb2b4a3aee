"""Talk with a build: a line or a pasted block is a message, and /reset ends the conversation.

/help lists the commands, such as /file PATH. Ctrl-C ends an answer, Ctrl-D ends the program.
Standard input may be a pipe, in which each line is a message. Sampling follows the checkpoint's
generation_config.json, unless flags say otherwise; --temperature 0 takes the likeliest tokens. If
the build can take further tokens onto a compressed cache, a turn costs only its own tokens, and a
conversation may be longer than L_max (docs/concepts/conversations.md).

examples:
  snapexport chat qwen.build
  snapexport chat qwen.build --system "Answer in one sentence." --top-p 0.9
  cat questions.txt | snapexport chat qwen.build --json
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from snapexport.cli import generate
from snapexport.cli.console import say
from snapexport.cli.generate import Answer, Printer, stream
from snapexport.cli.prompt import SYSTEM, read_file, system_message
from snapexport.cli.signals import Interrupts
from snapexport.cli.typed import FILE, Keyboard, command_of, piped_blocks, split_file
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.files.nearby import closest, did_you_mean
from snapexport.runtime.chat.chat_prompts import require_template
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import Message, PromptTooLongError
from snapexport.runtime.requests.request import Request, SamplingParams

HELP = "talk with a build"

NEW = "start anew with /reset"
QUIT = "/quit"
HELPS = {
    f"{FILE} PATH": "send a text file; a question after PATH is put at its end",
    "/reset": "forget the conversation, but for the system message",
    "/help": "show this",
    QUIT: "end the program, as Ctrl-D and /exit do",
    "Tab": "complete a command, or the name of a file",
    "Ctrl-C": "end the answer, which stays in the conversation; in a line: drop it",
    "pasting": "a block is one message, which Enter sends",
    "typing": "during an answer: waits for the next line, and is not shown before",
}
COMMANDS = frozenset({FILE, "/reset", "/help", QUIT, "/exit"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the system message, and the fields of SamplingParams."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    parser.add_argument("--system", metavar="TEXT", help=SYSTEM)
    generate.add_answer(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object for each answer")


def run(arguments: argparse.Namespace) -> int:
    """Answer until the input ends; 2 if an answer to piped input failed."""
    build = Build.open(arguments.build)
    require_template(build.directory)
    params, sources = generate.sampling(arguments)
    interrupts = Interrupts()
    keyboard = Keyboard(interrupts, COMMANDS) if sys.stdin and sys.stdin.isatty() else None
    with keyboard.hold() if keyboard else nullcontext():
        parked_rows = _parked_rows(build.manifest, arguments.baseline)
        model = generate.open_llm(arguments, parked_rows=parked_rows)
        conversation = Conversation(model, params, arguments.system)
        say(f"conversations of up to {conversation.longest:,} tokens; {sources}")
        session = _Session(conversation, _Json() if arguments.json else _Text(), interrupts)
        if not keyboard:
            return 2 if session.run(piped_blocks()) else 0
        say("/help lists the commands, Ctrl-D ends")
        with interrupts.as_notes():
            session.run(keyboard.blocks())
        return 0


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
            f"{what} {error.tokens:,} tokens, {error.limit}: {room}",
            hint if known else error.hint,
        )


@dataclass(frozen=True)
class _Session:
    conversation: Conversation
    show: "_Text | _Json"
    interrupts: Interrupts

    def run(self, blocks: Iterable[str]) -> int:
        """Answer each block; the number of those that failed."""
        failed = 0
        for block in blocks:
            try:
                if command_of(block) in (QUIT, "/exit"):
                    break
                if message := self._message(block):
                    self._answer(message)
            except UserError as error:
                self.show.error(error)
                failed += 1
        return failed

    def _message(self, block: str) -> str:
        """The message that a block sends; empty for none. Raises UserError."""
        command = command_of(block)
        rest = block.strip()[len(command) :].strip()
        if command == FILE:
            return _file_message(rest)
        if command == "/reset":
            self.conversation.reset()
        elif command == "/help":
            for name, text in HELPS.items():
                say(f"{name:12} {text}")
        elif command:
            raise UserError(
                f"there is no command {command}",
                f"{did_you_mean(closest(command, COMMANDS))}/help lists them; begin the line with "
                "a space to send it as it is",
            )
        text = block.strip("\n") if block.strip() else ""
        return "" if command else text if "\n" in text else text.strip()

    def _answer(self, message: str) -> None:
        self.interrupts.came = False
        self.show.start()
        answer = self.conversation.ask(message, self.show.delta, lambda: self.interrupts.came)
        self.show.end(answer, self.conversation.tokens_left(answer))


def _file_message(words: str) -> str:
    """A file's text, and the question after its name. Raises UserError."""
    name, question = split_file(words)
    path = Path(name).expanduser()
    if path.exists() and not path.is_file():
        raise UserError(f"{name} is not a file", "name a text file")
    text = read_file(str(path))
    if not text.strip():
        raise UserError(f"{name} is empty", "name another file")
    return f"{text.rstrip()}\n\n{question}" if question else text


class _Text:
    """Shows answers as text, and errors on standard error."""

    def start(self) -> None:
        self._printer = Printer()

    def delta(self, text: str) -> None:
        self._printer(text)

    def end(self, answer: Answer, left: int) -> None:
        self._printer.end()
        answer.print_times(f"about {left:,} tokens left")

    def error(self, error: UserError) -> None:
        say(f"error: {error.message}\n\nhint: {error.hint}")


class _Json:
    """Shows each answer, or its error, as a line of JSON."""

    def start(self) -> None:
        """Show nothing."""

    def delta(self, text: str) -> None:
        """Show nothing: the text comes with the end."""

    def end(self, answer: Answer, left: int) -> None:
        print(json.dumps(answer.report() | {"tokens_left": left}), flush=True)

    def error(self, error: UserError) -> None:
        print(json.dumps({"error": error.message, "hint": error.hint}), flush=True)
