"""Opens a GGUF file as a checkpoint.

Its config is written to a folder of its own, as config.json, from which all else goes as for any
checkpoint.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from snapexport.errors import UserError, needs_extra
from snapexport.exporter.checkpoint import Checkpoint


def open_gguf(path: Path) -> Checkpoint:
    """Read configs and the tensors' places. Raises UserError for what is missing or broken."""
    with needs_extra("build"):
        import gguf  # noqa: F401

        from snapexport.exporter import architectures, decoders, shapes
        from snapexport.exporter.gguf import config, split, tensors, texts

    read = split.read_whole(path, tensors.block_sizes())
    record = config.record_of(read)
    folder = tempfile.TemporaryDirectory(prefix="snapexport-gguf-")
    with _in_words_of(path):
        made = config.model_config(read, record, tensors.rope_factors(read))
        texts.write_configs(read, made, Path(folder.name))
        alone = Checkpoint.of_configs(Path(folder.name), {})
        decoder = decoders.load_decoder(alone, len(read.tensors))
        architectures.model_facts(decoder, alone)
        found = tensors.read_tensors(read, decoder.config, shapes.parameters(decoder))
    return replace(alone, tensors=found, gguf=read, folder=folder)


@contextmanager
def _in_words_of(path: Path) -> Iterator[None]:
    """Errors about the config.json that was made are about the file's metadata."""
    try:
        yield
    except UserError as error:
        if "config.json" not in error.message:
            raise
        message = error.message.replace("config.json", f"the metadata of {path}")
        raise UserError(message, "download or convert the file again") from None
