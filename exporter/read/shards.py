"""Finds the file and the offset of each tensor of a folder: the index decides between copies.

Reads headers, never a weight. Does not know which tensors a model needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from snapexport.errors import UserError
from snapexport.exporter.read import folders
from snapexport.exporter.read.folders import SHARD_INDEX, SINGLE_FILE
from snapexport.files.safetensors import SUFFIX, TensorSpan, read_header
from snapexport.files.untrusted import INDEX_BYTES, is_plain_name, read_object

_DOWNLOAD_AGAIN = "download the checkpoint again: the file is damaged or incomplete"
_OTHERS = ("adapter", "consolidated", "optimizer", "training")
"""What files are named that hold something else than a checkpoint's shards."""


@dataclass(frozen=True)
class Absent:
    """Tensors that an index names, and no file has. files: {tensor: the file it names}."""

    folder: Path = Path()
    files: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.files)

    def error(self, needed: str = "") -> UserError:
        """The error where something of it is needed: this tensor, if it is one of them."""
        tensor = needed if needed in self.files else next(iter(self.files))
        if not (self.folder / (file := self.files[tensor])).is_file():
            return folders.without_weights(self.folder, file)
        index = self.folder / SHARD_INDEX
        return UserError(f"{index} names the tensor {tensor}, {file} lacks it", _DOWNLOAD_AGAIN)

    @property
    def notes(self) -> tuple[str, ...]:
        """Say that nothing of it is needed."""
        if not self.files:
            return ()
        return (f"{SHARD_INDEX} names {_few(self.files)}, which no file has and nothing needs",)


@dataclass(frozen=True)
class Shards:
    """The tensors of a folder, what its index names beyond them, and what is not read."""

    tensors: dict[str, TensorSpan]
    absent: Absent = field(default_factory=Absent)
    left_out: tuple[str, ...] = ()


def read_shards(folder: Path) -> Shards:
    """Find tensors as transformers does: in the single file if there is one, else by the index.

    A tensor that the index assigns to no shard that has it is read from the last one that does, and
    other copies than the index names are left out. Raises UserError.
    """
    index = folder / SHARD_INDEX
    weight_map = _weight_map(index) if index.exists() else {}
    named = sorted({*weight_map.values()})
    if not weight_map or ((folder / SINGLE_FILE).exists() and SINGLE_FILE not in named):
        tensors = read_header(_weight_file(folder, SINGLE_FILE))
        return Shards(tensors, left_out=_not_read(folder, [SINGLE_FILE]))
    there = [name for name in named if (folder / name).is_file()]
    shards = {name: read_header(_weight_file(folder, name)) for name in there or named[:1]}
    found = {
        tensor: shard for tensor, shard in weight_map.items() if tensor in shards.get(shard, ())
    }
    by_index = set(found)
    for shard, spans in reversed(shards.items()):
        strays = [name for name in spans if weight_map.get(name, shard) in shards]
        found = dict.fromkeys(strays, shard) | found
    notes = [
        f"{said}: {_few(others)} in {shard}, which {SHARD_INDEX} does not assign to it"
        for shard, spans in shards.items()
        for said, others in (
            ("not read", [name for name in spans if found.get(name) != shard]),
            ("read if needed", [n for n in spans if found.get(n) == shard and n not in by_index]),
        )
        if others
    ]
    return Shards(
        {tensor: shards[shard][tensor] for tensor, shard in found.items()},
        Absent(folder, {name: file for name, file in weight_map.items() if name not in found}),
        (*notes, *_not_read(folder, named)),
    )


def _not_read(folder: Path, read: list[str]) -> tuple[str, ...]:
    others = sorted(path.name for path in folder.glob(f"*{SUFFIX}") if path.name not in read)
    others = [name for name in others if not name.startswith(_OTHERS)]
    by = SHARD_INDEX if read != [SINGLE_FILE] else SINGLE_FILE
    return (f"not read: {_few(others)}, besides {by}",) if others else ()


def _few(names: "list[str] | Mapping[str, str]") -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{next(iter(names)):.200}{more}"


def _weight_file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise folders.without_weights(folder, name)
    return (folder / name).resolve()


def _weight_map(index: Path) -> dict[str, str]:
    """{tensor: path of its shard}, in the index's folder or one below."""
    weight_map = read_object(index, INDEX_BYTES, _DOWNLOAD_AGAIN, lenient=True).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
        raise UserError(f"{index} has no weight_map of file names", _DOWNLOAD_AGAIN)
    for shard in weight_map.values():
        if not all(map(is_plain_name, shard.split("/"))):
            raise UserError(
                f"{index} names {shard!r:.200}, which is not the name of a file beside it or below",
                _DOWNLOAD_AGAIN,
            )
    return weight_map
