"""Generate text from a build, and print it as it comes.

If the build has a chat template, the prompt becomes a message of the user's. --no-chat gives the
prompt to the model as it is. Sampling follows the checkpoint's generation_config.json, unless flags
say otherwise; --temperature 0 takes the likeliest tokens.

examples:
  snapexport generate qwen.build "What is the capital of France?"
  snapexport generate qwen.build --no-chat --temperature 0 "Once upon a time"
  cat report.txt | snapexport generate qwen.build --prompt-file - --json
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snapexport.cli import flags, prompt
from snapexport.cli.console import ERR, Wrapped, columns, say
from snapexport.cli.progress import PrefillProgress
from snapexport.cli.summary import CacheUse
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError, flag_of
from snapexport.methods.table import run_flags
from snapexport.runtime.requests.config import LLMConfig
from snapexport.runtime.requests.generation_config import CONFIG, FIELDS, recommended_sampling
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import Message
from snapexport.runtime.requests.request import FinishReason, OutputDelta, Request, SamplingParams

HELP = "stream text from a build"

ANSWER_TOKENS = 1024
"""Tokens of an answer of `chat` and `ask`, where nobody says how many."""

SAMPLING = {
    "max_tokens": "most tokens to generate",
    "temperature": "randomness of the choice; 0: always the likeliest token",
    "top_p": "sample from the likeliest tokens that together have this probability",
    "top_k": "sample from this many of the likeliest tokens; 0: all",
    "min_p": "leave out tokens with less than this share of the likeliest token's probability",
    "repetition_penalty": "make tokens that came before less likely; 1: off",
    "seed": "make sampling repeatable",
    "ignore_eos": "continue after the end-of-sequence token",
}
FROM_CONFIG = "{} (default: generation_config.json's, else {})"
RUNNING = (
    flags.BACKEND
    | {"baseline": "use the full-cache graphs", "threads": "CPU threads (default: all cores)"}
    | flags.PROMPT_CACHE
    | {name: text for name, text in run_flags(LLMConfig).items() if not name.startswith("parked")}
)
"""Help texts of fields of `LLMConfig`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the prompt, and the fields of SamplingParams."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    prompt.add_arguments(parser)
    add_sampling(parser)
    add_running(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def run(arguments: argparse.Namespace) -> int:
    """Stream to standard output; print what was kept, and times on a terminal, on the other."""
    text = prompt.require(arguments)
    manifest = Build.open(arguments.build).manifest
    params, source = sampling(arguments)
    messages = prompt.messages(arguments, text)
    model = open_llm(arguments)
    request = request_of(model, text, messages, params)
    if messages is not None:
        prompt.note_template(arguments)
    if CONFIG in source:
        say(f"sampling: {source}")
    printer = Printer()
    answer = stream(model, request, ignore if arguments.json else printer)
    use = CacheUse.of(manifest, arguments.baseline, answer.positions)
    if arguments.json:
        print(json.dumps(answer.report() | use.report()))
        return 0
    printer.end()
    answer.print_times()
    say(str(use))
    return 0


def request_of(
    model: LLM, text: str, messages: list[Message] | None, params: SamplingParams
) -> Request:
    """The request of a text, or of the messages that it became. Raises UserError."""
    if messages is None:
        return model.read(text, params)
    with prompt.template_errors():
        return model.read_chat(messages, params)


class Printer:
    """Prints an answer as it comes. On a terminal its lines break at spaces."""

    def __init__(self) -> None:
        self._add: Callable[[str], object] = self._print
        self._wrapped = Wrapped(self._print, columns)
        if sys.stdout and sys.stdout.isatty():  # a closed one is None
            self._add = self._wrapped

    def __call__(self, text: str) -> None:
        self._add(text)
        print(end="", flush=True)

    def end(self) -> None:
        """End the answer's last line."""
        self._wrapped.end()
        print(flush=True)

    def _print(self, text: str) -> None:
        print(text, end="")


def ignore(_: str) -> None:
    """Show nothing: the text is in the JSON."""


def add_sampling(parser: argparse.ArgumentParser, helps: Mapping[str, str] = SAMPLING) -> None:
    """Add the fields of SamplingParams."""
    group, usual = parser.add_argument_group("sampling"), SamplingParams()
    found = {name: FROM_CONFIG.format(helps[name], getattr(usual, name)) for name in FIELDS}
    flags.add_fields(group, SamplingParams, {**helps, **found})
    parser.set_defaults(**dict.fromkeys(FIELDS))
    group.add_argument(
        "--no-generation-config",
        action="store_true",
        help="ignore the sampling that the checkpoint recommends",
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; can be given several times",
    )


def sampling(arguments: argparse.Namespace) -> tuple[SamplingParams, str]:
    """The flags' values before the checkpoint's. And where those of sampling come from."""
    values = flags.values(arguments, SAMPLING)
    given = {name: value for name, value in values.items() if value is not None}
    found = {} if arguments.no_generation_config else recommended_sampling(arguments.build)
    params: dict[str, Any] = found | given
    counted = FIELDS if params.get("temperature") else ["repetition_penalty"]
    sources = [
        f"{name} {params[name]} ({flag_of(name) if name in given else CONFIG})"
        for name in counted
        if name in params
    ]
    greedy = [] if counted is FIELDS else ["greedy"]
    source = ", ".join([*greedy, *sources])
    try:
        return SamplingParams(**params, stop=tuple(arguments.stop)), source
    except UserError as error:
        name, _, rest = error.message.partition(" ")
        hint = error.hint.replace(name, flag_of(name))
        raise UserError(f"{flag_of(name)} {rest}", hint) from None


def add_answer(parser: argparse.ArgumentParser) -> None:
    """Add the fields of SamplingParams for answers of ANSWER_TOKENS, and those of `open_llm`."""
    most = f"most tokens of an answer (default: {ANSWER_TOKENS})"
    add_sampling(parser, SAMPLING | {"max_tokens": most})
    parser.set_defaults(max_tokens=ANSWER_TOKENS)
    add_running(parser)


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `open_llm` reads."""
    flags.add_fields(parser, LLMConfig, RUNNING)


def open_llm(arguments: argparse.Namespace, **more: Any) -> LLM:
    """The LLM of a build. more: further fields of `LLMConfig`. Raises UserError."""
    return LLM(arguments.build, **flags.values(arguments, RUNNING), **more)


@dataclass
class Answer:
    """An answer so far, with its times by time.perf_counter()."""

    prompt_tokens: int
    started: float = field(default_factory=time.perf_counter)
    first: float | None = None
    last: float | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None

    def add(self, delta: OutputDelta) -> None:
        """Add one delta."""
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.drafted += delta.drafted
        self.accepted += delta.accepted
        self.cached_tokens += delta.cached_tokens
        self.finish_reason = delta.finish_reason

    @property
    def positions(self) -> int:
        """Positions that were fed: all but the newest token's."""
        return self.prompt_tokens + max(0, len(self.token_ids) - 1)

    def report(self) -> dict[str, object]:
        """For JSON: TTFT in seconds, and tokens a second after the first token."""
        waited = None if self.first is None else round(self.first - self.started, 4)
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "time_to_first_token_s": waited,
            "decode_tokens_per_s": self._speed(),
            "drafted_tokens": self.drafted,
            "accepted_tokens": self.accepted,
        }

    def print_times(self, *more: str) -> None:
        """Print the times on standard error, if that is a terminal."""
        if ERR.is_terminal:
            say(", ".join([*self.times(), *more]), "dim")

    def _speed(self) -> float | None:
        later = len(self.token_ids) - 1
        if self.first is None or self.last is None or later < 1:
            return None
        return round(later / (self.last - self.first), 2)

    def times(self) -> list[str]:
        """For people: the prompt's tokens, then times and speed."""
        times = [f"{self.prompt_tokens:,} prompt tokens"]
        if self.cached_tokens:
            times.append(f"{self.cached_tokens:,} of them read before")
        if self.first is not None:
            times.append(f"first token after {self.first - self.started:.2f} s")
        if speed := self._speed():
            times.append(f"{len(self.token_ids):,} tokens at {speed:.1f} tokens/s")
        if self.drafted:
            times.append(f"{self.accepted:,} of {self.drafted:,} drafted tokens right")
        return [*times, str(self.finish_reason)]


def stream(
    llm: LLM,
    request: Request,
    show: Callable[[str], None],
    interrupted: Callable[[], bool] = lambda: False,
) -> Answer:
    """Show the answer's text as it comes. Raises UserError for a broken model.

    interrupted: called between two steps; once it is true, the answer ends as "cancelled".
    """
    answer = Answer(len(request.prompt_token_ids))
    with PrefillProgress(answer.prompt_tokens) as progress:

        def note(count: int) -> None:
            if interrupted():
                raise InterruptedError
            progress.show_prefilled(count)

        with closing(llm.stream(request, on_prefill=note)) as deltas:
            try:
                for delta in deltas:
                    progress.end()
                    answer.add(delta)
                    show(delta.text)
                    if interrupted():
                        break
            except InterruptedError:
                pass
    answer.finish_reason = answer.finish_reason or "cancelled"
    if answer.finish_reason == "error":
        raise UserError(
            "the model's logits are not finite",
            "run `snapexport inspect BUILD --verify`; a build in 16 bits may need --dtype fp32",
        )
    return answer
