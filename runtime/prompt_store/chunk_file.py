"""Defines a kept chunk, its key, and the bytes of its file.

A key stands for a build, a salt and all tokens up to the chunk's end, so that a chunk that several
prompts begin with is kept once. A file is in the form of safetensors. Its header has a checksum of
the data, and nothing that its reader does not know: a file that differs in any byte is refused.
Knows no folder and no graph.
"""

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.files import safetensors
from snapexport.files.dtypes import BY_NUMPY

FORMAT = "snapexport.prompt-chunk.1"
TOKENS = "token_ids"

Parts = Mapping[str, NDArray[Any]]
"""A chunk's part of every full-length cache, by the names of prefill's inputs."""

Specs = Mapping[str, tuple[str, tuple[int, ...]]]
"""NumPy's name of the type, and the shape, of each part."""

_NO_SUM = 0


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Whole chunk number `index` of a prompt. build: digest of what computed it, in hex.

    token_ids: its own tokens; the key stands for those before them, too.
    """

    key: str
    build: str
    index: int
    token_ids: tuple[int, ...]
    parts: Parts

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())


def keys(build: str, salt: str, prompt: Sequence[int], size: int, count: int) -> list[str]:
    """The keys of a prompt's first `count` chunks of `size` tokens, in hex."""
    tenant = hashlib.sha256(salt.encode(errors="surrogatepass")).digest()
    root = hashlib.sha256(f"{FORMAT} {build} ".encode() + tenant).digest()
    tokens = np.array(prompt[: count * size], "<i8").reshape(count, size)
    _, *found = accumulate(
        tokens, lambda key, own: hashlib.sha256(key + own.tobytes()).digest(), initial=root
    )
    return [key.hex() for key in found]


def blocks_of(chunk: Chunk) -> list[memoryview]:
    """The file's bytes, which refer to the parts."""
    data = [np.array(chunk.token_ids, "<i8"), *chunk.parts.values()]
    blocks = [_bytes_of(array).data for array in data]
    checksum = _NO_SUM
    for block in blocks:
        checksum = zlib.crc32(block, checksum)
    specs = {name: (str(part.dtype), part.shape) for name, part in chunk.parts.items()}
    return [memoryview(_header(chunk, specs, checksum)), *blocks]


def size_of(wanted: Chunk, specs: Specs) -> int:
    """Bytes of the file of a chunk whose parts have these types and shapes."""
    return len(_header(wanted, specs, _NO_SUM)) + sum(_sizes(wanted, specs))


def read(raw: bytearray, wanted: Chunk, specs: Specs) -> Parts | None:
    """The parts of a chunk, over the bytes of its file; None if that is not the wanted one's.

    wanted: without parts.
    """
    begin = len(_header(wanted, specs, _NO_SUM))
    data = memoryview(raw)[begin:]
    tokens, *sizes = _sizes(wanted, specs)
    if (
        len(data) != tokens + sum(sizes)
        or raw[:begin] != _header(wanted, specs, zlib.crc32(data))
        or data[:tokens] != np.array(wanted.token_ids, "<i8").tobytes()
    ):
        return None
    return dict(_cut(data[tokens:], specs, sizes))


def _cut(
    data: memoryview, specs: Specs, sizes: Sequence[int]
) -> Iterator[tuple[str, NDArray[Any]]]:
    end = 0
    for (name, (dtype, shape)), size in zip(specs.items(), sizes, strict=True):
        begin, end = end, end + size
        yield name, np.frombuffer(data[begin:end], np.uint8).view(dtype).reshape(shape)


def _sizes(chunk: Chunk, specs: Specs) -> list[int]:
    """Bytes of the tokens, and of each part."""
    parts = (safetensors.tensor_bytes(*one) for one in _tensors(specs).values())
    return [8 * len(chunk.token_ids), *parts]


def _tensors(specs: Specs) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (BY_NUMPY[dtype].safetensors, shape) for name, (dtype, shape) in specs.items()}


def _header(chunk: Chunk, specs: Specs, checksum: int) -> bytes:
    """The header, as long for every checksum."""
    count = len(chunk.token_ids)
    metadata = {
        "format": FORMAT,
        "key": chunk.key,
        "build": chunk.build,
        "end": str((chunk.index + 1) * count),
        "crc32": f"{checksum:08x}",
    }
    return safetensors.header({TOKENS: ("I64", (count,)), **_tensors(specs)}, metadata=metadata)


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
