"""Generate text from a build, and print it as it comes.

If the build has a chat template, the prompt becomes a message of the user's. --no-chat gives the
prompt to the model as it is.

examples:
  snapexport generate qwen.build --prompt "What is the capital of France?"
  snapexport generate qwen.build --no-chat --prompt "Once upon a time" --max-tokens 64
  cat report.txt | snapexport generate qwen.build --prompt-file - --json
"""

import argparse
import json

from snapexport.cli import flags, llm, prompt
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import Message
from snapexport.runtime.requests.request import Request, SamplingParams

HELP = "stream text from a build"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the prompt, and the fields of SamplingParams."""
    llm.add_build(parser)
    prompt.add_arguments(parser, required=True)
    prompt.add_chat(parser)
    llm.add_sampling(parser)
    llm.add_running(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def run(arguments: argparse.Namespace) -> int:
    """Stream to standard output; print times to standard error if that is a terminal."""
    params = SamplingParams(**flags.values(arguments, llm.SAMPLING), stop=tuple(arguments.stop))
    text = prompt.read(arguments)
    assert text is not None
    messages = prompt.messages(arguments, text)
    model = llm.open_llm(arguments)
    request = _request(model, text, messages, params)
    if messages is not None:
        prompt.note_template(arguments)
    answer = llm.stream(model, request, _ignore if arguments.json else _write)
    print(json.dumps(answer.report()) if arguments.json else "")
    if not arguments.json:
        answer.print_times()
    return 0


def _request(
    model: LLM, text: str, messages: list[Message] | None, params: SamplingParams
) -> Request:
    if messages is None:
        return model.read(text, params)
    with prompt.template_errors():
        return model.read_chat(messages, params)


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _ignore(_: str) -> None:
    """Show nothing: the text is in the JSON."""
