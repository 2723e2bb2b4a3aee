"""Headers of .safetensors files: the library reads ours, and inconsistent ones are refused."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from snapexport.errors import UserError
from snapexport.files.safetensors import header, read_header


def entry(begin: int, end: int, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def written(file: Path, text: str, data: bytes = bytes(8)) -> Path:
    file.write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)
    return file


@pytest.mark.parametrize("data_at", [(64, 0), (4096, 0), (4096, 4095), (4096, 17)])
def test_safetensors_library_reads_our_header_at_every_alignment(data_at: tuple[int, int]) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    head = header({"x": ("F32", (2, 3))}, data_at)
    assert len(head) % data_at[0] == data_at[1]
    np.testing.assert_array_equal(load(head + values.tobytes())["x"], values)


def test_safetensors_header_is_read_back_as_written(tmp_path: Path) -> None:
    head = header({"a": ("BF16", (3,)), "b": ("U8", (2, 2)), "c": ("F32", ())})
    (tmp_path / "f").write_bytes(head + bytes(14))
    spans = read_header(tmp_path / "f")
    assert {n: (s.dtype, s.shape, s.offset - len(head), s.nbytes) for n, s in spans.items()} == {
        "a": ("BF16", (3,), 0, 6),
        "b": ("U8", (2, 2), 6, 4),
        "c": ("F32", (), 10, 4),
    }


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"x": entry(0, 4)}, "not the size"),
        ({"x": entry(8, 0)}, "not the size"),
        ({"x": entry(0, 8), "y": entry(4, 12)}, "two tensors in the bytes of y"),
        ({"x": entry(0, 8), "y": entry(0, 8)}, "two tensors in the bytes of y"),
        ({"x": entry(0, 8000, (2000,))}, "truncated"),
        ({"x": entry(-8, 0)}, "no readable"),
        ({"x": entry(0, 8, (-2,))}, "no readable"),
        ({"x": entry(0, 8, (True, 2))}, "no readable"),
        ({"x": entry(0, 8) | {"dtype": 32}}, "no readable"),
        ({"x": {"dtype": "F32"}}, "no readable"),
        ({"x": entry(0, 8) | {"dtype": "F3"}}, "type of x, 'F3', is not known"),
        ({"x": entry(0, 8, (2**62, 2**62))}, "not the size"),
        ({"x": entry(4, 8, (1,))}, "4 bytes before x that belong to no tensor"),
        ({"x": entry(0, 4, (1,))}, "4 bytes at its end that belong to no tensor"),
        ({"x": entry(0, 8), "__metadata__": {"format": 1}}, "does not map names to texts"),
        ({"x": 1}, "no readable"),
        ([], "no readable safetensors header: it does not hold a JSON object"),
    ],
)
def test_inconsistent_safetensors_header_is_refused(
    tmp_path: Path, entries: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_header(written(tmp_path / "f", json.dumps(entries)))


def test_safetensors_header_with_a_repeated_name_is_refused(tmp_path: Path) -> None:
    one = json.dumps({"x": entry(0, 8)})[1:-1]
    with pytest.raises(UserError, match="occurs twice"):
        read_header(written(tmp_path / "f", "{" + one + "," + one + "}"))


@pytest.mark.parametrize("content", [b"", b"\1\0", struct.pack("<Q", 1 << 40) + b"{}"])
def test_safetensors_file_shorter_than_its_header_is_refused(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(UserError, match="truncated"):
        read_header(tmp_path / "f")


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"<!DOCTYPE html>", "HTML"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\3", "gzip"),
        (b"PK\3\4\0\0\x08\x08\0\0", "torch.save"),
        (b"GGUF\3\0\0\0\1\0", "a GGUF file"),
    ],
)
def test_another_file_than_safetensors_is_named(tmp_path: Path, start: bytes, what: str) -> None:
    (tmp_path / "f").write_bytes(start + bytes(99))
    with pytest.raises(UserError, match=f"is not a safetensors file, but .*{what}"):
        read_header(tmp_path / "f")


@pytest.mark.parametrize("length", [b"<", b"\x80"])
def test_a_header_may_have_the_length_that_another_file_begins_with(
    tmp_path: Path, length: bytes
) -> None:
    (tmp_path / "f").write_bytes(length + bytes(7) + b"{}".ljust(length[0]))
    assert read_header(tmp_path / "f") == {}


def test_safetensors_metadata_and_empty_tensors_are_accepted(tmp_path: Path) -> None:
    entries = {"__metadata__": {"format": "pt"}, "x": entry(0, 8), "none": entry(8, 8, (0, 4))}
    spans = read_header(written(tmp_path / "f", json.dumps(entries)))
    assert {name: span.nbytes for name, span in spans.items()} == {"x": 8, "none": 0}
