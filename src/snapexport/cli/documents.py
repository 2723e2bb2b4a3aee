"""Reads the documents of `ask`: files of text, PDFs and standard input.

Also finds out which of the command's words is the question. Knows no model.
"""

import io
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from snapexport.cli.progress import AnswerProgress
from snapexport.cli.prompt import decode, read_bytes
from snapexport.errors import UserError, first_line, needs_extra
from snapexport.files.nearby import did_you_mean, near_file

STDIN = "-"
_PDF = b"%PDF-"
_HEAD_BYTES = 1024
"""A PDF's mark is somewhere in its beginning."""
_FILE_NAME = re.compile(r"\S*(/\S*|\.[A-Za-z0-9]{1,8})")


def split_words(words: Sequence[str], question: str | None) -> tuple[list[str], str | None]:
    """The names of files, and the question: --question's, or the last word if it is not a file.

    Raises UserError for a file that is not there.
    """
    *others, last = words
    if question is None and others and not _exists(last) and not _is_file_name(last):
        words, question = others, last
    for name in words:
        _require_file(name)
    if words.count(STDIN) > 1:
        raise UserError("standard input is named twice", f"give {STDIN} once")
    if question is not None and not question.strip():
        raise UserError("the question is empty", "give it in quotes, or leave it out")
    return list(words), question


def _exists(name: str) -> bool:
    return name == STDIN or os.path.exists(name)  # noqa: PTH110  # never raises


def _is_file_name(word: str) -> bool:
    """Whether a word was meant to be a file's name, though there is no such file."""
    meant = bool(_FILE_NAME.fullmatch(word))
    return meant or (not re.search(r"\s", word) and near_file(Path(word)) is not None)


def _require_file(name: str) -> None:
    if not _exists(name):
        if re.search(r"\s", name):
            hint = "name the files first, and the question last"
        else:
            hint = f"{did_you_mean(near_file(Path(name)))}a question goes last, in quotes"
        raise UserError(f"there is no file {name}", hint)
    if Path(name).is_dir():
        raise UserError(f"{name} is a folder", f"name its files, such as {name.rstrip('/')}/*.md")


def read_documents(names: Sequence[str]) -> str:
    """The texts of files one after another; of several, each under its name. Raises UserError."""
    texts = [_read(name) for name in names]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"File: {n}\n\n{text}" for n, text in zip(names, texts, strict=True))


def _read(name: str) -> str:
    what = "standard input" if name == STDIN else name
    raw = read_bytes(name, what)
    is_pdf = _PDF in raw[:_HEAD_BYTES]
    text = _pdf_text(raw, what) if is_pdf else decode(raw, what)
    if not text.strip():
        hint = "its pages are pictures: recognise its text first, for example with `ocrmypdf`"
        raise UserError(f"{what} has no text", hint if is_pdf else "name another file")
    return text.strip("\n")


def _pdf_text(raw: bytes, what: str) -> str:
    """The text of a PDF's pages. Raises UserError for one that can't be read."""
    with needs_extra("pdf"):
        import pypdf
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns about what it repairs
    try:
        pages = pypdf.PdfReader(io.BytesIO(raw)).pages
        with AnswerProgress(len(pages), f"pages of {what}") as progress:
            texts = []
            for page in pages:
                texts.append(page.extract_text())
                progress.advance()
    except pypdf.errors.FileNotDecryptedError:
        hint = "write a copy without it, for example with `qpdf --decrypt --password=...`"
        raise UserError(f"{what} is protected by a password", hint) from None
    except Exception as error:  # a broken PDF raises any
        hint = "write it anew, for example with `qpdf`, or give its text"
        raise UserError(f"{what} can't be read as a PDF: {first_line(error)}", hint) from error
    # Fonts may name lone halves of characters, which no encoding takes.
    return "\n\n".join(texts).encode(errors="replace").decode()
