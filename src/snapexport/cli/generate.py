"""Generate text from a build, and print it as it comes.

A build with a chat template is asked in it: the prompt becomes a message of the user's. --no-chat
gives the prompt to the model as it is.

examples:
  snapexport generate qwen.build --prompt "What is the capital of France?"
  snapexport generate qwen.build --no-chat --prompt "Once upon a time" --max-tokens 64
  cat report.txt | snapexport generate qwen.build --prompt-file - --json
"""

import argparse
import json
from pathlib import Path

from snapexport.cli import flags, prompt
from snapexport.cli.answer import stream
from snapexport.runtime.chat.chat_prompts import Message
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import Request, SamplingParams

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
    prompt.add_chat(parser)
    sampling = parser.add_argument_group("sampling")
    flags.add_fields(sampling, SamplingParams, SAMPLING)
    flags.add_stop(sampling)
    flags.add_backend(parser)
    flags.add_running(parser)
    flags.add_prefill(parser)
    flags.add_speculation(parser)
    flags.add_long_outputs(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def run(arguments: argparse.Namespace) -> int:
    """Stream to standard output; print times to standard error if that is a terminal."""
    params = SamplingParams(**flags.values(arguments, SAMPLING), stop=tuple(arguments.stop))
    text = prompt.read(arguments)
    assert text is not None
    messages = prompt.messages(arguments, text)
    llm = LLM(
        arguments.build,
        baseline=arguments.baseline,
        threads=arguments.threads,
        backend=arguments.backend,
        prefill=arguments.prefill,
        speculates=arguments.speculates,
        compress_every=arguments.compress_every,
    )
    request = _request(llm, text, messages, params)
    if messages is not None:
        prompt.note_template(arguments)
    answer = stream(llm, request, _ignore if arguments.json else _write)
    print(json.dumps(answer.report()) if arguments.json else "")
    if not arguments.json:
        answer.print_times()
    return 0


def _request(
    llm: LLM, text: str, messages: list[Message] | None, params: SamplingParams
) -> Request:
    if messages is None:
        return llm.read(text, params)
    with prompt.template_errors():
        return llm.read_chat(messages, params)


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _ignore(_: str) -> None:
    """Show nothing: the text is in the JSON."""
