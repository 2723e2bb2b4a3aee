"""Talk with a build: each line is a message, and the conversation goes on until /reset.

/help lists the commands. Ctrl-C ends an answer, Ctrl-D ends the program. Standard input may be a
pipe. Sampling follows the checkpoint's generation_config.json, unless flags say otherwise. With a
build made by --extend a turn costs only its own tokens, and a conversation may be longer than
L_max.

examples:
  snapexport chat qwen.build
  snapexport chat qwen.build --system "Answer in one sentence." --temperature 0.7
  cat questions.txt | snapexport chat qwen.build --json
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from snapexport.cli import flags, llm
from snapexport.cli.console import ERR
from snapexport.cli.conversation import Conversation
from snapexport.cli.messages import piped, typed
from snapexport.cli.prompt import SYSTEM
from snapexport.cli.signals import Interrupts
from snapexport.cli.streaming import Answer
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError, flag_of
from snapexport.runtime.chat.chat_prompts import require_template
from snapexport.runtime.requests.generation_config import CONFIG, FIELDS, recommended_sampling
from snapexport.runtime.requests.request import SamplingParams

HELP = "talk with a build"

FROM_CONFIG = "(default: generation_config.json's, else {})"
ANSWER_TOKENS = 1024
DEFAULTS = {"max_tokens": ANSWER_TOKENS, **dict.fromkeys(FIELDS)}
COMMANDS = """/reset   forget the conversation, but for the system message
/exit    end the program, as Ctrl-D does
/help    show this
Ctrl-C   end the answer"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the system message, and the fields of SamplingParams."""
    llm.add_build(parser)
    parser.add_argument("--system", metavar="TEXT", help=SYSTEM)
    usual = SamplingParams()
    helps = {
        name: f"{llm.SAMPLING[name]} {FROM_CONFIG.format(getattr(usual, name))}" for name in FIELDS
    }
    helps["max_tokens"] = f"most tokens of an answer (default: {ANSWER_TOKENS})"
    llm.add_sampling(parser, llm.SAMPLING | helps)
    parser.set_defaults(**DEFAULTS)
    llm.add_running(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object for each answer")


def run(arguments: argparse.Namespace) -> int:
    """Answer until the input ends; 2 if an answer to piped input failed."""
    build = Build.open(arguments.build)
    require_template(build.directory)
    sampling, sources = _sampling(arguments)
    params = SamplingParams(**sampling, stop=tuple(arguments.stop))
    model = llm.open_llm(arguments, parked_rows=_parked_rows(build.manifest, arguments.baseline))
    conversation = Conversation(model, params, arguments.system)
    ERR.print(f"conversations of up to {conversation.longest:,} tokens; {sources}", soft_wrap=True)
    show = _Json() if arguments.json else _Text()
    interrupts = Interrupts()
    session = _Session(conversation, show, interrupts)
    if sys.stdin.isatty():
        ERR.print("/help lists the commands, Ctrl-D ends")
        with interrupts.noted():
            session.run(typed(interrupts))
        return 0
    return 2 if session.run(piped()) else 0


def _parked_rows(manifest: Manifest, baseline: bool) -> int:
    """One conversation's row, where the build can park it."""
    extends = "extend" in manifest.graphs and not baseline
    return int(extends and manifest.tensor_parallel == 1)


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
        self.show.end(answer, self.conversation.left(answer))
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
    values = flags.values(arguments, llm.SAMPLING)
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
