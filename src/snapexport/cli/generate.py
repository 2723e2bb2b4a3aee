"""Generate text from a build, and print it as it comes.

examples:
  snapexport generate llama.build --prompt "Once upon a time" --max-tokens 64
  cat report.txt | snapexport generate llama.build --prompt-file - --json
"""

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from snapexport.cli import flags, prompt
from snapexport.cli.console import ERR
from snapexport.contract.errors import UserError
from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import OutputDelta, SamplingParams

HELP = "stream text from a build"

SAMPLING = {
    "max_tokens": "most tokens to generate",
    "temperature": "randomness of the choice; 0: always the likeliest token",
    "top_p": "sample from the likeliest tokens that together have this probability",
    "top_k": "sample from this many of the likeliest tokens; 0: all",
    "seed": "makes sampling repeatable",
    "ignore_eos": "continue after the end-of-sequence token",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the prompt, and the fields of SamplingParams."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    prompt.add_arguments(parser, required=True)
    flags.add_fields(parser.add_argument_group("sampling"), SamplingParams, SAMPLING)
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; can be given several times",
    )
    flags.add_backend(parser)
    parser.add_argument("--baseline", action="store_true", help="use the full-cache graphs")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


@dataclass
class Timed:
    """A completion so far, with its times."""

    started: float
    first: float | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, delta: OutputDelta) -> None:
        """Add one delta."""
        self.first = self.first or time.perf_counter()
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.finish_reason = delta.finish_reason

    def report(self) -> dict[str, object]:
        """For JSON: TTFT in seconds, and tokens a second after the first token."""
        assert self.first is not None
        decoding = time.perf_counter() - self.first
        later = len(self.token_ids) - 1
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "time_to_first_token_s": round(self.first - self.started, 4),
            "decode_tokens_per_s": round(later / decoding, 2) if later else None,
        }


def run(arguments: argparse.Namespace) -> int:
    """Stream to standard output; print times to standard error if that is a terminal."""
    params = SamplingParams(**flags.values(arguments, SAMPLING), stop=tuple(arguments.stop))
    text = prompt.read(arguments)
    assert text is not None
    llm = LLM(
        arguments.build,
        baseline=arguments.baseline,
        threads=arguments.threads,
        backend=arguments.backend,
    )
    completion = Timed(time.perf_counter())
    for delta in llm.stream(text, params):
        completion.add(delta)
        if not arguments.json:
            print(delta.text, end="", flush=True)
    if completion.finish_reason == "error":
        raise UserError("the model's logits are not finite", "build it again with --dtype fp32")
    report = completion.report()
    print(json.dumps(report) if arguments.json else "")
    if ERR.is_terminal and not arguments.json:
        ERR.print(
            f"first token after {report['time_to_first_token_s']} s, then "
            f"{report['decode_tokens_per_s']} tokens/s, {report['finish_reason']}",
            style="dim",
        )
    return 0
