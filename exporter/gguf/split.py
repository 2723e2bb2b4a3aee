"""Reads a GGUF file that llama.cpp split into parts, `NAME-00001-of-00003.gguf`, as one.

Any part leads to the others, which lie beside it.
"""

import re
from dataclasses import replace
from pathlib import Path

from snapexport.errors import UserError
from snapexport.exporter.gguf.header import (
    DOWNLOAD_AGAIN,
    BlockSizes,
    GgufHeader,
    StoredTensor,
    read_header,
)

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
