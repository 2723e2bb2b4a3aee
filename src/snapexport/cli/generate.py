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
from snapexport.cli.console import ERR
from snapexport.cli.talk import system_message
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.runtime.chat.chat_prompts import require_template
from snapexport.runtime.chat.template_files import has_template
from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import Request, SamplingParams

HELP = "stream text from a build"

SAMPLING = {
    "max_tokens": "most tokens to generate",
    "temperature": "randomness of the choice; 0: always the likeliest token",
    "top_p": "sample from the likeliest tokens that together have this probability",
    "top_k": "sample from this many of the likeliest tokens; 0: all",
    "seed": "makes sampling repeatable",
    "ignore_eos": "continue after the end-of-sequence token",
}
SYSTEM = "the system message, before the conversation"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the prompt, and the fields of SamplingParams."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    prompt.add_arguments(parser, required=True)
    parser.add_argument(
        "--chat",
        action=argparse.BooleanOptionalAction,
        help="ask in the build's chat template (default: if it has one)",
    )
    parser.add_argument("--system", metavar="TEXT", help=SYSTEM)
    sampling = parser.add_argument_group("sampling")
    flags.add_fields(sampling, SamplingParams, SAMPLING)
    flags.add_stop(sampling)
    flags.add_backend(parser)
    flags.add_running(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def run(arguments: argparse.Namespace) -> int:
    """Stream to standard output; print times to standard error if that is a terminal."""
    params = SamplingParams(**flags.values(arguments, SAMPLING), stop=tuple(arguments.stop))
    text = prompt.read(arguments)
    assert text is not None
    chats = _chats(arguments, text)
    llm = LLM(
        arguments.build,
        baseline=arguments.baseline,
        threads=arguments.threads,
        backend=arguments.backend,
    )
    request = _request(llm, text, params, arguments.system, chats)
    if chats and arguments.chat is None:
        ERR.print(
            "asking in the build's chat template; --no-chat gives the prompt as it is",
            soft_wrap=True,
        )
    answer = stream(llm, request, _ignore if arguments.json else _write)
    print(json.dumps(answer.report()) if arguments.json else "")
    if not arguments.json:
        answer.print_times()
    return 0


def _chats(arguments: argparse.Namespace, text: str) -> bool:
    """Whether to ask in the chat template. Raises UserError, before the model is loaded."""
    if arguments.chat:
        require_template(Build.open(arguments.build).directory)
    chats = arguments.chat is not False and has_template(arguments.build)
    if arguments.system is not None and not chats:
        why = "--no-chat" if arguments.chat is False else f"{arguments.build}: no chat template"
        raise UserError(f"--system is not supported with {why}", "write it into the prompt")
    if chats and not text:
        raise UserError("a prompt is empty", "give it one token or more")
    return chats


def _request(
    llm: LLM, text: str, params: SamplingParams, system: str | None, chats: bool
) -> Request:
    if not chats:
        return llm.read(text, params)
    return llm.read_chat([*system_message(system), {"role": "user", "content": text}], params)


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _ignore(_: str) -> None:
    """Show nothing: the text is in the JSON."""
