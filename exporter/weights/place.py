"""Writes the checkpoint's weights into the build, a file for each tensor, without loading them.

A tensor of the build's dtype is copied, by reflink where the file system can. A tensor of another
dtype is converted block by block. With `link`, the checkpoint's files are hard-linked instead of
copied. Existing files are never written to, since a hard link is the user's own checkpoint.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from snapexport.contract.manifest import WeightFile
from snapexport.errors import UserError
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights.forms import parts
from snapexport.exporter.weights.joined import Joined, join_files
from snapexport.exporter.weights.tensor_file import (
    NUMPY_DTYPE,
    Progress,
    Tensor,
    WeightWriter,
    blocks,
    cast,
    is_hole,
    place_of,
    require_floats,
)
from snapexport.files.copying import clone_file, copy_file
from snapexport.files.dtypes import BY_FLAG, DType
from snapexport.files.safetensors import (
    SUFFIX,
    TensorSpan,
    find_span,
    header_sha256,
    read_header,
)
from snapexport.files.untrusted import read_text
from snapexport.files.whole import sha256_of

FP8 = "F8_E4M3"
_HASHED_BYTES = 1 << 30
"""Larger weights get a hash only if it is known without reading them again."""


@dataclass
class PlacedWeights:
    """The placed tensors and their files.

    hashes: file -> SHA-256, None if unknown. linked: whether some files are hard links. integers:
    weights that were written in parts. joined: several weights of one file in the place of one.
    """

    tensors: dict[str, TensorSpan] = field(default_factory=dict)
    hashes: dict[Path, str | None] = field(default_factory=dict)
    linked: bool = False
    joined: dict[str, TensorSpan] = field(default_factory=dict)
    integers: Mapping[str, parts.Weight] = field(default_factory=dict)

    def add(self, writer: WeightWriter) -> None:
        """A file that was written."""
        self.tensors[writer.name] = writer.span
        self.hashes[writer.file] = writer.sha256

    def join(self, joined: Joined, directory: Path, progress: Progress) -> None:
        """Move the weights of each group into one file."""
        for name, members in joined.items():
            spans = {one: self.tensors[one] for one in members}
            file, digest = join_files(name, spans, directory, progress)
            for span in spans.values():
                del self.hashes[span.file]
            found = read_header(file)
            self.tensors |= found
            self.hashes[file] = digest
            span_of_all = find_span(found, name)
            assert span_of_all is not None, name
            self.joined[name] = span_of_all

    def describe(self, directory: Path) -> list[WeightFile]:
        """The manifest's entries, for a build in `directory`."""
        cheap = sum(file.stat().st_size for file in self.hashes) <= _HASHED_BYTES
        return [
            WeightFile(
                file=file.relative_to(directory).as_posix(),
                size=file.stat().st_size,
                header_sha256=header_sha256(file),
                sha256=known or (sha256_of(file) if cheap else None),
            )
            for file, known in self.hashes.items()
        ]


def place(
    checkpoint: Checkpoint,
    wanted: Iterable[str],
    dtype: DType,
    directory: Path,
    progress: Progress,
    *,
    in_fp32: Collection[str] = (),
    in_fp8: Collection[str] = (),
    integers: Mapping[str, parts.Weight] = MappingProxyType({}),
    joined: Joined = MappingProxyType({}),
    link: bool = False,
    aligned: bool = True,
) -> PlacedWeights:
    """Write every `wanted` tensor as `dtype` into `directory`. Raises UserError.

    wanted: names of tensors, or of parts of those in `integers`. in_fp32: those that are written as
    fp32 instead. in_fp8: those that are fp8 and stay so. joined: weights that share a file.
    aligned: data are placed so that a reflink can share them; otherwise weights of equal shapes are
    at equal offsets.
    """
    directory.mkdir(parents=True)
    names, placed = set(wanted), PlacedWeights(integers=integers)
    whole = {n for n in names if parts.whole(n) == n or parts.whole(n) not in integers}
    found = {name: checkpoint.tensors[name] for name in sorted(whole)}
    for name in found.keys() - set(in_fp8):
        require_floats(name, found[name])
    stored = dict.fromkeys(found, BY_FLAG[dtype].safetensors)
    stored |= dict.fromkeys(in_fp32, "F32") | dict.fromkeys(in_fp8, FP8)
    if link:
        _link(found, stored, directory, placed)
    for name, span in found.items():
        if name in placed.tensors:
            continue
        placed.add(_write(name, span, stored[name], directory, progress, aligned))
    of_parts = BY_FLAG[dtype].safetensors
    for name, weight in sorted(integers.items()):
        for writer in parts.write(name, weight, of_parts, directory, progress):
            placed.add(writer)
    placed.join(joined, directory, progress)
    return placed


def _write(
    name: str, tensor: Tensor, stored: str, directory: Path, progress: Progress, aligned: bool
) -> WeightWriter:
    """Write the file of one tensor."""
    same = tensor if isinstance(tensor, TensorSpan) and tensor.dtype == stored else None
    at = place_of(same) if same and aligned else (64, 0)
    with WeightWriter(directory, name, stored, tensor.shape, progress, at) as writer:
        if same:
            writer.copy(same)
        else:
            _convert(name, tensor, stored, writer)
    return writer


def place_again(source: Path, directory: Path, *, link: bool) -> bool:
    """Copy the weight files of `source` to another build. Returns whether they are hard links.

    link: without reflinks, hard-link instead of copying.
    """
    directory.mkdir(parents=True)
    linked = False
    for file in sorted(source.iterdir()):
        if not link:
            copy_file(file, directory / file.name)
        elif not clone_file(file, directory / file.name):
            os.link(file.resolve(), directory / file.name)
            linked = True
    return linked


def require_linkable(checkpoint: Checkpoint) -> None:
    """Raise UserError if `link` has no files to link: graphs read only .safetensors files."""
    if checkpoint.gguf:
        raise UserError(
            f"--link-weights cannot link {checkpoint.source}: graphs read no GGUF files",
            "leave the flag out: weights are dequantized into the build",
        )


def _link(
    sources: dict[str, Tensor], stored: dict[str, str], directory: Path, placed: PlacedWeights
) -> None:
    """Hard-link each file that has tensors of the right dtype."""
    spans = {name: one for name, one in sources.items() if isinstance(one, TensorSpan)}
    fits = {name: span for name, span in spans.items() if span.dtype == stored[name]}
    links: dict[Path, Path] = {}
    for index, file in enumerate(sorted({span.file for span in fits.values()})):
        # A blob in the Hub's cache is named only by its hash; readers need the suffix.
        name = file.name if file.suffix == SUFFIX else f"{file.name}{SUFFIX}"
        taken = name.removesuffix(SUFFIX) in sources or directory / name in links.values()
        links[file] = directory / (f"{index}-{name}" if taken else name)
        _link_file(file, links[file])
        placed.hashes[links[file]] = recorded_sha256(file)
    placed.tensors |= {name: replace(span, file=links[span.file]) for name, span in fits.items()}
    placed.linked = bool(links)


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        raise UserError(
            f"--link-weights cannot link {source}: {error.strerror}",
            "write the build to the checkpoint's file system, or leave the flag out to copy the "
            "weights",
        ) from None


def _convert(name: str, tensor: Tensor, dtype: str, writer: WeightWriter) -> None:
    for block in blocks(tensor):
        if is_hole(block):
            writer.skip(block.size * NUMPY_DTYPE[dtype].itemsize)
        else:
            writer.write(cast(name, block, dtype).tobytes())


_SHA256 = re.compile("[0-9a-f]{64}")
_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_METADATA_BYTES = 1 << 12
_METADATA = ".cache/huggingface/download"


def recorded_sha256(file: Path) -> str | None:
    """The file's hash from the Hub: the name of its blob, or the etag beside it."""
    if _SHA256.fullmatch(file.name):
        return file.name
    metadata = file.parent / _METADATA / f"{file.name}.metadata"
    try:
        lines = read_text(metadata, _METADATA_BYTES, "").split()
    except (UserError, OSError):
        return None  # it is a help, and not needed
    if len(lines) != 3 or not _SHA256.fullmatch(lines[1]) or not _TIME.fullmatch(lines[2]):
        return None
    # The lines are commit, etag and time of the download. A later file has other content.
    return lines[1] if file.stat().st_mtime <= float(lines[2]) + 1 else None
