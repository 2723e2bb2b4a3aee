"""Ask questions about files: they are read once, and each question follows them in the prompt.

The last word that is not a file is the question. Without one, questions are typed, or are lines
of a pipe; an empty line or Ctrl-D ends, Ctrl-C ends an answer. A prompt is the files and one
question: none knows the others.

examples:
  snapexport ask qwen.build report.pdf "What did it cost?"
  snapexport ask qwen.build src/*.py
  git diff | snapexport ask qwen.build - "Is anything missing?" --json
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path

from snapexport.cli import generate, prompt
from snapexport.cli.console import ERR, say
from snapexport.cli.documents import STDIN, read_documents, split_words
from snapexport.cli.generate import Answer, Printer, ignore, request_of, stream
from snapexport.cli.help import Parser
from snapexport.cli.signals import Interrupts
from snapexport.cli.summary import CacheUse
from snapexport.cli.typed import Keyboard, command_of, piped_blocks
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kinds import graph_of
from snapexport.errors import UserError, flag_of
from snapexport.methods.table import in_blocks
from snapexport.runtime.engine.graph_set import PrefillForm
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.generation_config import CONFIG
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import (
    PromptTooLongError,
    load_tokenizer,
    require_readable,
)
from snapexport.runtime.requests.request import Request, SamplingParams

HELP = "ask questions about files"

_AS_IT_IS = "Ctrl-D ends; begin a line with a space to ask it as it is"


def add_arguments(parser: Parser) -> None:
    """The build, the files, the question, and the fields of SamplingParams."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="text or PDF; - for standard input",
    )
    parser.gathers = "files"
    parser.add_argument("--question", metavar="TEXT", help="the question")
    prompt.add_chat(parser)
    generate.add_answer(parser)
    parser.add_argument(
        "--no-prompt-cache",
        dest="prompt_cache",
        action="store_const",
        const=None,
        help="keep nothing of the files (default: in ~/.cache/snapexport, by --prompt-cache)",
    )
    parser.set_defaults(prompt_cache=usual_folder())
    parser.add_argument("--json", action="store_true", help="print a JSON object for each answer")


def usual_folder() -> Path:
    """Where prompts' caches are kept unless a flag says otherwise; nothing is made."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "snapexport"


def run(arguments: argparse.Namespace) -> int:
    """Answer the question, or all that come; 2 if an answer to piped input failed."""
    names, question = split_words(arguments.files, arguments.question)
    if question is None and STDIN in names:
        raise UserError(
            "a question is missing, and standard input is a document", "add it in quotes at the end"
        )
    build = Build.open(arguments.build)
    params, source = generate.sampling(arguments)
    prompts = Prompts(arguments, build, read_documents(names))
    prompts.choose_form(question or "")
    if arguments.prompt_cache == usual_folder() and not _may_keep(arguments, build):
        arguments.prompt_cache = None
    interrupts = Interrupts()
    is_typed = question is None and bool(sys.stdin) and sys.stdin.isatty()
    keyboard = Keyboard(interrupts, ()) if is_typed else None
    with keyboard.hold() if keyboard else nullcontext():
        reader = Reader(generate.open_llm(arguments), prompts, params)
        session = _Session(reader, _Json() if arguments.json else _Text(), interrupts)
        if CONFIG in source:
            say(f"sampling: {source}")
        if question is not None:
            session.answer(question)
            return 0
        if not keyboard:
            return 2 if session.run(filter(str.strip, piped_blocks())) else 0
        reader.read()
        say("type a question; an empty line or Ctrl-D ends")
        with interrupts.as_notes():
            session.run(takewhile(str.strip, keyboard.blocks()))
        return 0


def _may_keep(arguments: argparse.Namespace, build: Build) -> bool:
    """Whether prompts can be kept in the usual folder, which nobody asked for."""
    try:
        build.require_run(prompt_cache=arguments.prompt_cache, prefill=arguments.prefill)
        arguments.prompt_cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (UserError, OSError):
        return False
    return os.access(arguments.prompt_cache, os.W_OK)


class Prompts:
    """Prompts about one document: its text, then a question. Knows no loaded model."""

    def __init__(self, arguments: argparse.Namespace, build: Build, document: str) -> None:
        self._arguments, self.build, self._document = arguments, build, document

    @property
    def is_baseline(self) -> bool:
        """Whether the full cache answers."""
        return bool(self._arguments.baseline)

    @property
    def in_blocks(self) -> bool:
        """Whether prompts go block by block, of which no cache holds the beginning."""
        return bool(self._arguments.prefill == "blocks")

    def request(self, llm: LLM, question: str, params: SamplingParams) -> Request:
        """The request of a question. Raises UserError."""
        text = self._text(question)
        try:
            return request_of(llm, text, prompt.messages(self._arguments, text), params)
        except PromptTooLongError as error:
            raise _too_long(error, self._may_extend) from None

    def choose_form(self, question: str) -> None:
        """Take a prompt beyond L_max in blocks, where the build has them.

        Loads no weights. Raises UserError for a prompt that is too long.
        """
        limits = self._limits("blocks" if self._extends else "chunks")
        count, most = self._count(question, limits), self._limits("chunks").longest_prompt
        if count > limits.longest_prompt:
            raise _too_long(PromptTooLongError(count, limits), self._may_extend)
        if count > most and not self.in_blocks:
            self._arguments.prefill = "blocks"
            say(
                f"{count:,} tokens are more than the {most:,} of --L-max: each question reads "
                "them block by block"
            )

    @property
    def _extends(self) -> bool:
        manifest = self.build.manifest
        extends = any(graph_of(name).kind.extends_rows for name in manifest.graphs)
        return extends and not self.is_baseline and manifest.tensor_parallel == 1

    @property
    def _may_extend(self) -> bool:
        """Whether another build of the model would take longer prompts in blocks."""
        manifest = self.build.manifest
        return not self._extends and not self.is_baseline and manifest.tensor_parallel == 1

    def _limits(self, form: PrefillForm) -> Limits:
        manifest = self.build.manifest
        is_full = self.is_baseline or not manifest.geometry.compresses
        return Limits.of(manifest, full_cache=is_full, form=form)

    def _count(self, question: str, limits: Limits) -> int:
        """Tokens of a prompt. Raises UserError for a text that is far too long for any."""
        text = self._text(question)
        require_readable(text, limits)
        given = prompt.render(self.build, text, prompt.messages(self._arguments, text))
        return len(given.tokens(load_tokenizer(self.build.directory), limits))

    def _text(self, question: str) -> str:
        return f"{self._document}\n\n{question}"


def _too_long(error: PromptTooLongError, may_extend: bool) -> UserError:
    hint = error.hint.replace("shorten it", "give fewer files, or a part of one")
    if "--L-max" in hint and may_extend:
        hint += f", or with {_flags_of_blocks()}, which takes prompts beyond it block by block"
    return UserError(f"files and question make {error.tokens:,} tokens, {error.limit}", hint)


def _flags_of_blocks() -> str:
    """The flags with which a build takes prompts in blocks."""
    given = (asdict(options) for options in in_blocks(True))
    return " ".join(flag_of(name) for one in given for name, value in one.items() if value is True)


class Reader:
    """A loaded model that answers questions about one document."""

    def __init__(self, llm: LLM, prompts: Prompts, params: SamplingParams) -> None:
        self.llm, self._prompts, self._params = llm, prompts, params

    def read(self) -> None:
        """Prefill the document before the first question, which then goes on from its chunks."""
        if not self._prompts.in_blocks:
            one = replace(self._params, max_tokens=1, min_tokens=0)
            stream(self.llm, self._prompts.request(self.llm, "", one), ignore)

    def ask(
        self, question: str, show: Callable[[str], None], interrupted: Callable[[], bool]
    ) -> Answer:
        """Stream the answer to a question. Raises UserError."""
        request = self._prompts.request(self.llm, question, self._params)
        cache = self.llm.executor.prompt_cache
        held = cache.held_of(request.prompt_token_ids) if cache else 0
        answer = stream(self.llm, request, show, interrupted)
        answer.cached_tokens = max(answer.cached_tokens, held)
        return answer

    def use(self, answer: Answer) -> CacheUse:
        """The use of the cache after an answer."""
        return CacheUse.of(
            self._prompts.build.manifest, self._prompts.is_baseline, answer.positions
        )


@dataclass(frozen=True)
class _Session:
    reader: Reader
    show: "_Text | _Json"
    interrupts: Interrupts

    def run(self, questions: Iterable[str]) -> int:
        """Answer each question; the number of those that failed."""
        failed = 0
        for question in questions:
            try:
                if command := command_of(question):
                    raise UserError(f"ask has no command {command}", _AS_IT_IS)
                self.answer(question)
            except UserError as error:
                self.show.error(question, error)
                failed += 1
        return failed

    def answer(self, question: str) -> None:
        """Answer one question. Raises UserError."""
        self.interrupts.came, started = False, time.perf_counter()
        self.show.start()
        answer = self.reader.ask(question, self.show.delta, lambda: self.interrupts.came)
        self.show.end(question, answer, self.reader.use(answer), time.perf_counter() - started)


class _Text:
    """Shows answers as text, and on standard error what was kept, with times on a terminal."""

    def start(self) -> None:
        self._printer = Printer()

    def delta(self, text: str) -> None:
        self._printer(text)

    def end(self, question: str, answer: Answer, use: CacheUse, seconds: float) -> None:
        self._printer.end()
        parts = [str(use), *answer.times()] if ERR.is_terminal else [str(use)]
        say(", ".join(parts), "dim")

    def error(self, question: str, error: UserError) -> None:
        say(f"error: {error.message}\n\nhint: {error.hint}")


class _Json:
    """Shows each answer, or its error, as a line of JSON."""

    def start(self) -> None:
        """Show nothing."""

    def delta(self, text: str) -> None:
        """Show nothing: the text comes with the end."""

    def end(self, question: str, answer: Answer, use: CacheUse, seconds: float) -> None:
        report = {"question": question, "answer": answer.text, "seconds": round(seconds, 4)}
        kept = answer.report() | use.report()
        print(json.dumps(report | {n: v for n, v in kept.items() if n != "text"}), flush=True)

    def error(self, question: str, error: UserError) -> None:
        found = {"question": question, "error": error.message, "hint": error.hint}
        print(json.dumps(found), flush=True)
