"""Reads a tokenizer.json. The library's errors and panics become UserErrors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

from snapexport.errors import UserError, first_line

TOKENIZER = "tokenizer.json"
COPY_AGAIN = "copy tokenizer.json from the checkpoint again"


def parse_tokenizer(text: str, path: Path) -> Tokenizer:
    """The tokenizer, with truncation and padding off. path: for messages. Raises UserError."""
    with tokenizer_errors(f"{path} cannot be read"):
        tokenizer = Tokenizer.from_str(text)
        tokenizer.no_truncation()
        tokenizer.no_padding()
    return tokenizer


@contextmanager
def tokenizer_errors(message: str) -> Iterator[None]:
    """Turn what the library raises into a UserError: its exceptions share no narrower base."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic of Rust's is not an Exception
        raise UserError(f"{message}: {first_line(error)}", COPY_AGAIN) from None
