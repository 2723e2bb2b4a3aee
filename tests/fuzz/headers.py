"""Mutated headers of .safetensors files and shard indexes, against the safetensors library."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np

from snapexport.errors import UserError
from snapexport.files.safetensors import read_header
from tests.fuzz import material
from tests.fuzz.children import WronglyAcceptedError
from tests.fuzz.mutations import bytes_mutated, dumped, mutated
from tests.fuzz.outcomes import SAME

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = (
    "BOOL U8 I8 F4 F6_E2M3 F6_E3M2 F8_E5M2 F8_E4M3 F8_E8M0 I16 U16 F16 BF16 I32 U32 F32 I64 U64 "
    "F64 C64 f32 float32 F128"
).split()


class Headers:
    name = "headers"

    def __init__(self, work: Path) -> None:
        from safetensors import safe_open  # noqa: F401

        import snapexport.exporter.read  # noqa: F401

        self._checkpoint = work / "llama"
        raw = (self._checkpoint / FILE).read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        self._entries: dict[str, Any] = json.loads(raw[8 : 8 + length])
        self._data = raw[8 + length :]

    def mutate(self, rng: random.Random, directory: Path) -> str:
        material.link_tree(self._checkpoint, directory)
        if rng.random() < 0.15:
            return self._shards(rng, directory)
        entries, told = self._mutated(rng)
        text, more = dumped(entries, rng)
        length = len(text)
        if rng.random() < 0.05:
            length = rng.choice([0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1, 10**8 + 1])
            more += f" length {length}"
        raw = struct.pack("<Q", max(0, length)) + text + self._data
        if rng.random() < 0.05:
            raw, extra = bytes_mutated(raw, rng)
            more += f" {extra}"
        material.replace(directory / FILE, raw)
        return f"{told} {more}"

    def _mutated(self, rng: random.Random) -> tuple[Any, str]:
        if rng.random() < 0.5:
            return mutated(self._entries, rng)
        entries = json.loads(json.dumps(self._entries))
        one, other = rng.sample([name for name in entries if name != "__metadata__"], 2)
        way = rng.randrange(7)
        spans = entries[one]["data_offsets"]
        if way == 0:
            shift = rng.choice([-4, 4, 64, -64, 1])
            entries[one]["data_offsets"] = [spans[0] + shift, spans[1] + shift]
            return entries, f"{one} shifted by {shift}"
        if way == 1:
            entries[one] = dict(entries[other])
            return entries, f"{one} lies where {other} lies"
        if way == 2:
            entries[one]["dtype"] = rng.choice(DTYPES)
            return entries, f"dtype of {one}: {entries[one]['dtype']}"
        if way == 3:
            entries[one]["shape"] = rng.choice([spans[::-1], [], [0], [-1], [2**63, 2], [1] * 5000])
            return entries, f"shape of {one}"
        if way == 4:
            del entries[one]
            return entries, f"{one} dropped: a hole"
        if way == 5:
            shift = rng.choice([4, 64])
            for name, entry in entries.items():
                if name != "__metadata__":
                    entry["data_offsets"] = [at + shift for at in entry["data_offsets"]]
            return entries, f"all shifted by {shift}"
        entries["__metadata__"] = rng.choice([{"a": 1}, [], "x", {"format": None}, 1, None])
        return entries, "metadata"

    def _shards(self, rng: random.Random, directory: Path) -> str:
        """An index over two shards, one of its entries mutated."""
        (directory / FILE).rename(directory / "a.safetensors")
        (directory / "b.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        names = [name for name in self._entries if name != "__metadata__"]
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, "a.safetensors")}
        way = rng.randrange(4)
        if way == 0:
            (directory / "b.safetensors").unlink()
            (directory / "b.safetensors").hardlink_to(directory / "a.safetensors")
            index["weight_map"]["more"] = "b.safetensors"
            told = "each tensor in two shards"
        elif way == 1:
            place = rng.choice(
                ["../llama/" + FILE, str(self._checkpoint / FILE), "/dev/zero", "", "."]
            )
            index["weight_map"][rng.choice(names)] = place
            told = f"a shard at {place}"
        elif way == 2:
            index["weight_map"][rng.choice(names)] = "b.safetensors"
            told = "a tensor not in its shard"
        else:
            index, told = mutated(index, rng)
        text, more = dumped(index, rng)
        (directory / INDEX).write_bytes(text)
        return f"index: {told} {more}"

    def judge(self, directory: Path) -> tuple[str, str]:
        from snapexport.exporter.read import open_checkpoint

        if (directory / INDEX).exists():
            opened = open_checkpoint(directory)
            tensors = opened.tensors
            self._require_inside(tensors, directory)
            index = json.loads((directory / INDEX).read_bytes())["weight_map"]
            if index.keys() - tensors.keys() != opened.absent.files.keys():
                raise WronglyAcceptedError("it does not know what the index names in vain")
            spans = dict(tensors)
        else:
            spans = read_header(directory / FILE)
            self._require_as_library(spans, directory / FILE)
            open_checkpoint(directory)
        if self._read(spans) != self._read(read_header(self._checkpoint / FILE)):
            return "other", "other tensors, as the library reads them"
        return SAME, ""

    def _require_as_library(self, spans: dict[str, Any], file: Path) -> None:
        """What the library refuses is to be refused; else both have the same bytes."""
        from safetensors import safe_open

        try:
            with safe_open(file, "np") as opened:
                names = set(opened.keys())
                for name in names & spans.keys():
                    shape = tuple(opened.get_slice(name).get_shape())
                    if shape != spans[name].shape:
                        raise WronglyAcceptedError(
                            f"{name} has the shape {spans[name].shape}, not {shape}"
                        )
                    same_kind = spans[name].dtype in ("F32", "F16", "F64")
                    if same_kind and opened.get_tensor(name).tobytes() != _bytes(spans[name]):
                        raise WronglyAcceptedError(f"{name} has other bytes than in the library")
        except (WronglyAcceptedError, UserError):
            raise
        except Exception as error:
            raise WronglyAcceptedError(f"the library refuses it: {str(error)[:120]}") from None
        if names != spans.keys():
            raise WronglyAcceptedError("the library finds other tensors")

    def _require_inside(self, spans: dict[str, Any], directory: Path) -> None:
        index = json.loads((directory / INDEX).read_bytes())["weight_map"]
        for name, span in spans.items():
            if not span.file.is_relative_to(directory.resolve()):
                raise WronglyAcceptedError(f"a shard outside of the checkpoint: {span.file}")
            named = directory / index.get(name, "")
            # As transformers, which reads every shard: the index decides between copies alone.
            if named.is_file() and named.resolve() != span.file and name in read_header(named):
                raise WronglyAcceptedError("another copy of a tensor than the index says")

    def _read(self, spans: dict[str, Any]) -> dict[str, bytes]:
        return {name: span.dtype.encode() + _bytes(span) for name, span in spans.items()}


def _bytes(span: Any) -> bytes:
    with span.file.open("rb") as file:
        file.seek(span.offset)
        return np.frombuffer(file.read(span.nbytes), np.uint8).tobytes()
