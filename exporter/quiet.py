"""Keeps the export libraries' progress and warnings off the terminal."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

_LOGGERS = ("torch.onnx", "onnx_ir", "onnxscript", "transformers")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the libraries in a block. Exceptions and logged errors still come through."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing its own in a block."""
    from transformers.utils import logging as theirs

    shown = theirs.is_progress_bar_enabled()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            theirs.enable_progress_bar()
