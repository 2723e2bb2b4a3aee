"""A GGUF file in parts is read as the whole one."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("gguf")

import gguf
from gguf import GGMLQuantizationType as Kind

from snapexport.errors import UserError
from snapexport.exporter.read import open_checkpoint, with_tokenizer
from snapexport.exporter.read.gguf import read_whole
from snapexport.exporter.read.gguf.tensors import block_sizes
from snapexport.exporter.weights.tensor_file import blocks
from tests.exporter import gguf_files

Changed = dict[str, object]


def split(whole: Path, folder: Path, count: int = 3, **changes: object) -> list[Path]:
    """The parts of a file, as llama.cpp's gguf-split writes them."""
    reader = gguf.GGUFReader(whole)
    each = -(-len(reader.tensors) // count)
    files = [folder / f"m-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1)]
    for number, file in enumerate(files):
        writer = gguf.GGUFWriter(file, "llama")
        if number == 0:
            for field in reader.fields.values():
                name, kind = field.name, field.types[0]
                if not name.startswith(("GGUF.", "general.architecture")):
                    item = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                    writer.add_key_value(name, field.contents(), kind, sub_type=item)
        else:
            del writer.kv_data[0]["general.architecture"]
        values = {"no": number, "count": count, "tensors": len(reader.tensors)} | changes
        writer.add_uint16("split.no", values["no"])
        writer.add_uint16("split.count", values["count"])
        writer.add_int32("split.tensors.count", values["tensors"])
        for tensor in reader.tensors[number * each : (number + 1) * each]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.make("llama", tmp_path_factory.mktemp("gguf"), Kind.Q4_1)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_any_part_leads_to_all_of_the_file(part: int, whole: Path, tmp_path: Path) -> None:
    one, other = open_checkpoint(whole), open_checkpoint(split(whole, tmp_path)[part])
    assert one.config == other.config
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        pairs = zip(blocks(tensor), blocks(other.tensors[name]), strict=True)
        assert all((left == right).all() for left, right in pairs)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        texts = [(with_tokenizer(opened) / name).read_text() for opened in (one, other)]
        assert texts[0] == texts[1]


def test_a_missing_part_is_named(whole: Path, tmp_path: Path) -> None:
    files = split(whole, tmp_path)
    files[1].unlink()
    with pytest.raises(UserError, match=r"1 are missing, among them m-00002-of-00003\.gguf"):
        open_checkpoint(files[0])


def test_a_part_under_another_name_is_refused(whole: Path, tmp_path: Path) -> None:
    file = split(whole, tmp_path)[1].rename(tmp_path / "second.gguf")
    with pytest.raises(UserError, match="is one of 3 parts of a split file, and is not called so"):
        open_checkpoint(file)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"no": 1}, "is part 1 of 3, not 0 of 3"), ({"tensors": 7}, "the first one announces 7")],
)
def test_parts_that_contradict_are_refused(
    changes: Changed, reason: str, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=reason):
        read_whole(split(whole, tmp_path, **changes)[0], block_sizes())


def test_the_same_part_twice_is_refused(whole: Path, tmp_path: Path) -> None:
    files = split(whole, tmp_path)
    shutil.copy(files[0], files[2])
    with pytest.raises(UserError, match="is part 0 of 3, not 2 of 3"):
        open_checkpoint(files[0])
