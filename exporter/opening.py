"""Opens a checkpoint: a directory, or a GGUF file (`gguf/`). Reads headers, never a weight."""

from pathlib import Path

from snapexport.errors import UserError
from snapexport.exporter import folders
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.gguf.opening import open_gguf


def open_checkpoint(path: Path) -> Checkpoint:
    """Read configs and tensor headers. Raises UserError for what is missing or broken."""
    if path.is_dir():
        return Checkpoint.of_directory(path)
    if path.suffix == folders.GGUF or path.is_file():
        folders.require_files(path)
        folders.require_gguf(path)
        return open_gguf(path)
    raise UserError(
        f"no such directory: {path}",
        "--model takes a checkpoint directory, a GGUF file or a Hugging Face Hub id (owner/name)",
    )


def with_tokenizer(checkpoint: Checkpoint) -> Path:
    """Return the directory with the tokenizer's files; those of a GGUF file are written first."""
    if checkpoint.gguf:
        from snapexport.exporter.gguf.texts import write_tokenizer

        write_tokenizer(checkpoint.gguf, checkpoint.directory)
    return checkpoint.directory
