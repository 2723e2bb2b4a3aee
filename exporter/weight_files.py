"""What the manifest says of the weight files: their size, and hashes that cost little to get."""

import re
from pathlib import Path

from snapexport.contract.build_directory import header_sha256_of, sha256_of
from snapexport.contract.manifest import WeightFile
from snapexport.exporter.weights import PlacedWeights

_HASHED_BYTES = 1 << 30  # a larger file is only hashed if its checkpoint brings the hash
_SHA256 = re.compile("[0-9a-f]{64}")
_HUB_METADATA = ".cache/huggingface/download"


def describe(placed: PlacedWeights, directory: Path) -> list[WeightFile]:
    """The manifest's entries for the files placed in the build `directory`."""
    return [
        WeightFile(
            file=file.relative_to(directory).as_posix(),
            size=file.stat().st_size,
            header_sha256=header_sha256_of(file),
            sha256=_own_hash(source) or _cheap_hash(file),
        )
        for file, source in placed.sources.items()
    ]


def _own_hash(source: Path) -> str | None:
    """The hash that the Hub gave a file: the name of its blob, or the etag kept beside it."""
    if _SHA256.fullmatch(source.name):
        return source.name
    metadata = source.parent / _HUB_METADATA / f"{source.name}.metadata"
    lines = metadata.read_text().split() if metadata.is_file() else []
    if len(lines) != 3 or not _SHA256.fullmatch(lines[1]):
        return None
    # commit, etag, time of the download: a file written later is no longer what was downloaded
    return lines[1] if source.stat().st_mtime <= float(lines[2]) + 1 else None


def _cheap_hash(file: Path) -> str | None:
    return sha256_of(file) if file.stat().st_size <= _HASHED_BYTES else None
