"""Reads text documents, and cuts them into passages of equal length in tokens.

Knows no model and no cache.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, zip_longest
from pathlib import Path
from random import Random
from textwrap import wrap

from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.runtime.requests.prompts import load_tokenizer

SUFFIXES = (".txt", ".md", ".rst")
"""Files of a folder that are read; a file that is named itself may have any suffix."""

WIDTH = 120
"""Longer lines are broken, so that a prompt's length can be met."""


Ids = tuple[int, ...]
Prose = Callable[[Random], Iterator[str]]
"""Endless lines of text that hold no needle, each with its newline; equal for equal seeds."""


@dataclass(frozen=True)
class Document:
    """A text of one kind. name: its file's, or its path where several have that name."""

    name: str
    text: str


@dataclass(frozen=True)
class Passage:
    """A part of a document. name: the document's, and the place of the part in it."""

    name: str
    ids: Ids


def read_documents(paths: Iterable[Path]) -> list[Document]:
    """The named files and the text files in named folders. Raises UserError."""
    files = dict.fromkeys(chain.from_iterable(_files(path) for path in paths))
    named = Counter(file.name for file in files)
    names = [str(file) if named[file.name] > 1 else file.name for file in files]
    return [Document(name, _text(file)) for name, file in zip(names, files, strict=True)]


def manual() -> Document:
    """The prose of Python's own manual, which comes with Python: about 30,000 words.

    Raises UserError where it was left out.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError(
            "this Python came without its manual (pydoc_data)",
            "give texts of your own (--documents; build: --calibrate PATH), or eval --haystack "
            "sentences",
        ) from None
    lines = chain.from_iterable(map(str.splitlines, topics.values()))
    return Document("Python's manual", "\n".join(filter(_is_prose, lines)))


def _is_prose(line: str) -> bool:
    """Whether a line is long and has hardly anything but words: no code, no grammar, no table."""
    words = sum(char.isalpha() or char in " ,." for char in line)
    return line.isascii() and len(line) >= 40 and words >= 0.96 * len(line)


def lines_of(documents: Sequence[Document]) -> Prose:
    """The documents' lines without blank ones, from a random place on, over and over."""
    lines = [line for document in documents for line in _lines(document.text)]
    if not lines:
        raise UserError("the documents have no text", "give files with text as --documents")

    def prose(rng: Random) -> Iterator[str]:
        first = rng.randrange(len(lines))
        return (lines[i % len(lines)] for i in count(first))

    return prose


def open_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a build. Raises UserError if it has none."""
    tokenizer = load_tokenizer(directory)
    if tokenizer is None:
        raise UserError(f"{directory} has no tokenizer.json", "copy it from the checkpoint")
    return tokenizer


def passages(
    documents: Sequence[Document], tokenizer: Tokenizer, tokens: int, most: int
) -> list[Passage]:
    """Passages of exactly `tokens` tokens, at most `most`, from all documents in turn.

    No two overlap. Each begins with the tokenizer's special tokens (BOS). Raises UserError where no
    document is long enough.
    """
    in_turn = zip_longest(*(_cut(document, tokenizer, tokens) for document in documents))
    found = [part for row in in_turn for part in row if part is not None][:most]
    if not found:
        raise UserError(
            f"no document has {tokens} tokens",
            "give longer texts, or ask for fewer tokens of each",
        )
    return found


def opening_ids(tokenizer: Tokenizer, text: str) -> Ids:
    """The ids of a text that opens a prompt: with special tokens before it, none after it."""
    encoding = tokenizer.encode(text)
    end = len(encoding)
    special = encoding.special_tokens_mask
    while end > 0 and special[end - 1]:
        end -= 1
    return tuple(encoding.ids[:end])


def _cut(document: Document, tokenizer: Tokenizer, tokens: int) -> Iterator[Passage]:
    ids = tuple(tokenizer.encode(document.text, add_special_tokens=False).ids)
    whole = opening_ids(tokenizer, document.text)
    opening = whole[: len(whole) - len(ids)]
    step = tokens - len(opening)
    if step < 1:
        raise UserError(
            f"the tokenizer's {len(opening)} special tokens leave no text in {tokens} tokens",
            f"ask for more than {len(opening)}",
        )
    for start in range(0, len(ids) - step + 1, step):
        yield Passage(f"{document.name}:{start}", opening + ids[start : start + step])


def _lines(text: str) -> Iterator[str]:
    """Lines of at most WIDTH characters, each with its newline."""
    for line in filter(str.strip, text.splitlines()):
        for part in [line] if len(line) <= WIDTH else wrap(line, WIDTH):
            yield part + "\n"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if not found:
        raise UserError(
            f"{path} has no text files",
            f"a folder's files of the suffixes {', '.join(SUFFIXES)} are read",
        )
    return found


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}", "check its name") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not UTF-8: {error.reason} at byte {error.start}",
            "convert it, for example with `iconv -t utf-8`",
        ) from None
