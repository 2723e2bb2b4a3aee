"""Opens a GGUF file as a checkpoint: its config and tokenizer as files, its tensors by name.

header -> config -> tensors. Its config is written to a folder of its own, as config.json, from
which all else goes as for any checkpoint. Of the weights only vectors are read before they are
placed. A file that llama.cpp split into parts, `NAME-00001-of-00003.gguf`, is read as one: any part
leads to the others, which are beside it.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from snapexport.errors import UserError, needs_extra
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.read.gguf.header import (
    DOWNLOAD_AGAIN,
    BlockSizes,
    GgufHeader,
    StoredTensor,
    read_header,
)


def open_gguf(path: Path) -> Checkpoint:
    """Read configs and the tensors' places. Raises UserError for what is missing or broken."""
    with needs_extra("build"):
        import gguf  # noqa: F401

        from snapexport.exporter.model import model_facts
        from snapexport.exporter.model.models import parameters
        from snapexport.exporter.model.probe import load_decoder
        from snapexport.exporter.read.gguf import config, tensors, tokenizer

    read = read_whole(path, tensors.block_sizes())
    record = config.record_of(read)
    folder = tempfile.TemporaryDirectory(prefix="snapexport-gguf-")
    with _in_words_of(path):
        made = config.model_config(read, record, tensors.rope_factors(read))
        tokenizer.write_configs(read, made, Path(folder.name))
        opened = Checkpoint.of_configs(Path(folder.name), {})
        decoder = load_decoder(opened, len(read.tensors))
        model_facts(decoder, opened)
        found = tensors.read_tensors(read, decoder.config, parameters(decoder))
    return replace(opened, tensors=found, gguf=read, folder=folder)


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


_NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")
_MOST = 1 << 10
"""Parts. The largest models have a few dozen."""
_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"


def read_whole(path: Path, blocks: BlockSizes) -> GgufHeader:
    """The header of a file, or of all parts of a split one. Raises UserError for a missing part."""
    header = read_header(path, blocks)
    count = header.metadata.get(_COUNT, 0)
    if count in (0, 1):
        return header
    parts = [read_header(file, blocks) for file in _files(path, count)]
    tensors: dict[str, StoredTensor] = {}
    for index, part in enumerate(parts):
        _require_part(part, index, len(parts))
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise UserError(f"{part.file} has {name!r:.100} once more", DOWNLOAD_AGAIN)
            tensors[name] = replace(tensor, file=part.file)
    if (announced := parts[0].metadata.get(_TENSORS)) not in (None, len(tensors)):
        raise UserError(
            f"the parts of {path} have {len(tensors)} tensors, the first one announces "
            f"{announced!r:.20}",
            DOWNLOAD_AGAIN,
        )
    metadata = {key: one for key, one in parts[0].metadata.items() if not key.startswith("split.")}
    return GgufHeader(parts[0].file, metadata, tensors)


def _files(path: Path, count: object) -> list[Path]:
    """All parts, in order."""
    what = f"{path} is one of {count!r:.20} parts of a split file"
    name = _NAME.fullmatch(path.name)
    if not name or type(count) is not int or int(name[3]) != count or not 1 < count <= _MOST:
        raise UserError(
            f"{what}, and is not called so",
            "give the parts the names of llama.cpp, NAME-00001-of-00003.gguf, or join them: "
            "`llama-gguf-split --merge FIRST-PART.gguf WHOLE.gguf`",
        )
    files = [path.with_name(f"{name[1]}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise UserError(
            f"{what}, of which {len(missing)} are missing, among them {missing[0]}",
            f"download all parts into {path.parent}",
        )
    return files


def _require_part(part: GgufHeader, index: int, count: int) -> None:
    number, announced = part.metadata.get(_NUMBER), part.metadata.get(_COUNT)
    if (number, announced) != (index, count):
        raise UserError(
            f"{part.file} says that it is part {number!r:.20} of {announced!r:.20}, not {index} of "
            f"{count}",
            "download the parts again, all of one version",
        )
