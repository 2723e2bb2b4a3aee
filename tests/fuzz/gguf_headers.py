"""Mutated headers of a GGUF file, against the reader of the package `gguf`."""

import random
from pathlib import Path
from typing import Any

from tests.fuzz.children import WronglyAcceptedError
from tests.fuzz.mutations import bytes_mutated
from tests.fuzz.outcomes import SAME

FILE = "llama.gguf"
FIXED = (b"\0", b"\xff", b"\x01\0\0\0")
"""What lengths and types become: zeros, the largest numbers, a one."""


class GgufHeaders:
    name = "gguf"

    def __init__(self, work: Path) -> None:
        import torch

        torch.set_num_threads(1)
        self._raw = (work / FILE).read_bytes()
        self._end = self._raw.index(b"blk.1.ffn_norm.weight") + 64
        self.judge(work)  # imports what the cases need: they are forks of this process

    def mutate(self, rng: random.Random, directory: Path) -> str:
        header, told = self._raw[: self._end], []
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            header, what = self._mutated(header, rng)
            told.append(what)
        (directory / FILE).write_bytes(header + self._raw[self._end :])
        return "; ".join(told)

    def _mutated(self, header: bytes, rng: random.Random) -> tuple[bytes, str]:
        at, width = rng.randrange(len(header) or 1), rng.choice([1, 2, 4, 8])
        way = rng.randrange(4)
        if way == 0:
            return bytes_mutated(header, rng)
        if way == 1:
            new = (rng.choice(FIXED) * 8)[:width]
        elif way == 2:
            new = rng.randbytes(width)
        else:
            place = rng.randrange(len(header) or 1)
            new = header[place : place + rng.choice([8, 16, 40])]
        return header[:at] + new + header[at + len(new) :], f"{new!r} at {at}"

    def judge(self, directory: Path) -> tuple[str, str]:
        from snapexport.builder.texts import read_texts
        from snapexport.exporter.model.probe import load_decoder
        from snapexport.exporter.read import open_checkpoint, with_tokenizer
        from snapexport.exporter.weights import shapes

        opened = open_checkpoint(directory / FILE)
        read_texts(with_tokenizer(opened))
        shapes.require_tensors(opened, load_decoder(opened))
        assert opened.gguf is not None
        self._require_as_library(opened.gguf.tensors, directory / FILE)
        if (directory / FILE).read_bytes() != self._raw:
            return "other", "another header, as the library reads it"
        return SAME, ""

    def _require_as_library(self, tensors: dict[str, Any], file: Path) -> None:
        """What the library refuses is to be refused; else both find the same tensors."""
        import gguf

        try:
            found = gguf.GGUFReader(file).tensors
        except Exception as error:
            raise WronglyAcceptedError(f"the library refuses it: {str(error)[:120]}") from None
        read = {
            one.name: (int(one.tensor_type), one.shape.tolist()[::-1], one.data_offset, one.n_bytes)
            for one in found
        }
        mine = {
            name: (one.kind, list(one.shape), one.offset, one.nbytes)
            for name, one in tensors.items()
        }
        if read != mine:
            raise WronglyAcceptedError("the library finds other tensors")
