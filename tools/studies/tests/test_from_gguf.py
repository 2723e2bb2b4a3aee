"""A GGUF file written as a checkpoint has the values that the file has."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from snapexport.errors import UserError
from tests.exporter import gguf_files
from tests.exporter.gguf_files import Kind
from tests.exporter.read.gguf.test_gguf import by_transformers
from tools.studies.speed.from_gguf import checkpoint_of


def test_a_gguf_file_is_written_as_a_checkpoint_once(tmp_path: Path) -> None:
    file = gguf_files.make("llama", tmp_path, Kind.Q4_0)
    made = checkpoint_of(file, tmp_path / "checkpoints")
    _, expected = by_transformers(file)
    written = load_file(made / "model.safetensors")
    assert expected.keys() >= written.keys() >= expected.keys() - {"lm_head.weight"}
    for name, tensor in written.items():
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)
    assert (made / "tokenizer.json").is_file()
    before = (made / "config.json").stat().st_mtime_ns
    assert checkpoint_of(file, tmp_path / "checkpoints") == made
    assert (made / "config.json").stat().st_mtime_ns == before


def test_a_missing_gguf_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no\.gguf is no file"):
        checkpoint_of(tmp_path / "no.gguf", tmp_path)
    assert list(tmp_path.iterdir()) == []
