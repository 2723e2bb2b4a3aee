"""Finds the positions that a build keeps of a prompt, for `inspect`.

If the build has a chat template, the prompt is the template's whole text.
"""

import argparse
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.cli import prompt
from snapexport.cli.flags import whole_file
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError, flag_of
from snapexport.measure import page
from snapexport.runtime.chat.chat_prompts import ChatPrompts
from snapexport.runtime.engine.open_executor import BackendName


@dataclass(frozen=True)
class Given:
    """The prompt's text. is_whole: with its special tokens, which the chat template wrote."""

    text: str
    is_whole: bool


def read(arguments: argparse.Namespace, build: Build) -> Given | None:
    """The prompt as the model gets it, or None where no flag gave one. Raises UserError."""
    text = prompt.read(arguments)
    if text is None:
        for name in ("html", "system", "chat", "backend"):
            if (value := getattr(arguments, name)) is not None:
                flag = "--no-chat" if value is False else flag_of(name)
                raise UserError(
                    f"{flag} is for a prompt, but none was given", "add --prompt-file FILE"
                )
        return None
    messages = prompt.messages(arguments, text)
    if messages is None:
        return Given(text, is_whole=False)
    with prompt.template_errors():
        chat = ChatPrompts.open(build.directory, None, frozenset())
        given = Given(chat.text(messages), is_whole=True)
    prompt.note_template(arguments)
    return given


def found(
    build: Build, given: Given | None, html: Path | None, backend: BackendName | None
) -> dict[str, Any] | None:
    """The kept positions of a prompt, if one is given; written to a page, if --html is given."""
    if given is None:
        return None
    with whole_file(html, "--html") if html else nullcontext() as write:
        kept = kept_positions(build, given, backend)
        if write:
            write(html_page(build, given, kept))
    return kept


def kept_positions(build: Build, given: Given, backend: BackendName | None) -> dict[str, Any]:
    """Prefill the prompt, and return the positions that each layer and KV head kept."""
    from snapexport.runtime.requests.llm import LLM
    from snapexport.runtime.requests.prompts import encode, require_readable
    from snapexport.runtime.requests.request import SamplingParams

    llm = LLM(build.directory, backend=backend)
    require_readable(given.text, llm.executor.limits)
    token_ids = encode(given.text, llm.tokenizer, not given.is_whole)
    (completion,) = llm.generate([token_ids], SamplingParams(max_tokens=1))
    length = len(completion.prompt_token_ids)
    kept = llm.executor.topk_positions() or []
    return {"prompt_tokens": length, "topk_positions": [layer.tolist() for layer in kept]}


def html_page(build: Build, given: Given, kept: dict[str, Any]) -> str:
    """The page that shows the kept positions in the prompt."""
    from snapexport.runtime.requests.prompts import load_tokenizer

    tokenizer = load_tokenizer(build.directory)
    assert tokenizer is not None, "the prompt was encoded with one"
    encoded = tokenizer.encode(given.text, add_special_tokens=not given.is_whole)
    tokenized = page.TokenizedPrompt.of(given.text, encoded)
    assert len(tokenized.offsets) == kept["prompt_tokens"]
    return page.render(build.directory.name, tokenized, build.manifest.geometry, arrays(kept))


def arrays(kept: dict[str, Any]) -> list[NDArray[np.int64]]:
    """The voted positions [Hkv, K] of each layer."""
    return [np.array(layer, np.int64) for layer in kept["topk_positions"]]
