"""A GGUF file that is damaged, or that would give another model, is refused with its reason."""

import os
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("gguf")

from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter

from snapexport.builder.options import BuildOptions
from snapexport.builder.resolved import resolve
from snapexport.errors import UserError
from snapexport.exporter.read import local_path, open_checkpoint, with_tokenizer
from tests.exporter import gguf_files
from tests.exporter.gguf_files import set_to
from tests.refused import refused

BUILD = ("--L-max", 64, "--out", "out")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.make("llama", tmp_path_factory.mktemp("gguf"), Kind.Q8_0)


def message(file: Path) -> str:
    with pytest.raises(UserError) as error:
        resolve(BuildOptions.of(model=str(file), out=file.parent / "out", L_max=64))
    assert error.value.hint
    return error.value.message


def spoiled(sound: Path, out: Path, change: Callable[[bytearray], object]) -> Path:
    content = bytearray(sound.read_bytes())
    change(content)
    out.write_bytes(content)
    return out


def at(offset: int, form: str, value: int) -> Callable[[bytearray], object]:
    return lambda content: struct.pack_into(form, content, offset, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (at(0, "<I", 0), "is not a GGUF file: it begins with b'\\x00\\x00\\x00\\x00'"),
        (at(4, "<I", 1), "its version is 1"),
        (at(4, ">I", 3), "its version is 50331648, only little-endian"),
        (at(8, "<Q", 1 << 60), "announces 1152921504606846976 tensors"),
        (at(16, "<Q", 1 << 60), "announces 1152921504606846976 metadata entries"),
        (at(8, "<Q", 60_000), "cannot be read as GGUF"),
        (at(24, "<Q", 1 << 63), "at most 1024 are read"),
        (lambda content: content.__delitem__(slice(10, None)), "the file ends within it"),
        (lambda content: content.__delitem__(slice(900, None)), "past the file's end"),
        (lambda content: content.__delitem__(slice(-300, None)), "the file ends before the end of"),
        (lambda content: content.clear(), "is not a GGUF file: it begins with b''"),
    ],
)
def test_damaged_header_is_refused(
    sound: Path, tmp_path: Path, change: Callable[[bytearray], object], reason: str
) -> None:
    assert reason in message(spoiled(sound, tmp_path / "bad.gguf", change))


def test_header_of_random_changes_is_read_or_refused(sound: Path, tmp_path: Path) -> None:
    """Nothing but UserError, whatever is changed in the metadata and the table of tensors."""
    end, rng = sound.read_bytes().index(b"blk.1.ffn_norm.weight"), random.Random(0)
    outcomes = set()
    for _ in range(150):

        def change(content: bytearray) -> None:
            for _ in range(rng.choice([1, 1, 3])):
                where, width = rng.randrange(end), rng.choice([1, 4, 8])
                content[where : where + width] = rng.randbytes(width)

        try:
            with_tokenizer(open_checkpoint(spoiled(sound, tmp_path / "bad.gguf", change)))
            outcomes.add("read")
        except UserError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def renamed(name: str, other: str | None) -> Callable[[GGUFWriter], object]:
    """None: the tensor is removed."""

    def spoil(writer: GGUFWriter) -> None:
        tensors = writer.tensors[0].copy()
        tensor = tensors.pop(name)
        writer.tensors[0] = tensors | ({other: tensor} if other else {})

    return spoil


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (set_to(general__architecture="phi3"), "the architecture 'phi3' of"),
        (set_to(general__architecture=3), "the architecture 3 of"),
        (set_to(general__architecture=None), "the architecture None of"),
        (set_to(general__alignment=48), "general.alignment is 48, not a power of two"),
        (set_to(split__count=3), "is one of 3 parts of a split file, and is not called so"),
        (set_to(llama__block_count=None), "has no llama.block_count"),
        (set_to(llama__block_count=0), "num_hidden_layers is 0, not a whole number from 1"),
        (set_to(llama__block_count=2**32 - 1), "num_hidden_layers is 4294967295"),
        (set_to(llama__block_count=4000), "wants 4000 layers, and the checkpoint has"),
        (set_to(llama__block_count=3), "lacks 9 tensors that its architecture needs"),
        (set_to(llama__embedding_length="64"), "hidden_size is '64', not a whole number"),
        (set_to(llama__embedding_length=128), "has shape [261, 64], its metadata wants [261, 128]"),
        (set_to(llama__attention__head_count_kv=3), "is not a multiple of num_key_value_heads 3"),
        (set_to(llama__attention__head_count_kv=[2, 2]), "has a list as attention.head_count"),
        (set_to(llama__vocab_size=2**31), "vocab_size is 2147483648"),
        (set_to(llama__rope__freq_base=float("nan")), "rope_theta is nan"),
        (set_to(llama__rope__scaling__type="longrope"), "RoPE is scaled as 'longrope'"),
        (set_to(llama__rope__scaling__type="linear"), "a RoPE of type 'linear' has no factor"),
        (set_to(llama__attention__causal=False), "has llama.attention.causal = False"),
        (set_to(llama__logit_shift=1.0), "has llama.logit_shift, which is not known"),
        (set_to(llama__expert_count=8), "has llama.expert_count = 8"),
        (set_to(llama__attention__key_length=32), "turns 16 of a head's 32 dimensions by RoPE"),
        (set_to(tokenizer__ggml__eos_token_id=261), "neither a token id nor a list of them"),
        (set_to(tokenizer__ggml__eos_token_id=[1, 2]), "has a list as ggml.eos_token_id"),
        (set_to(tokenizer__ggml__eot_token_id=[1, 2]), "has a list as ggml.eot_token_id"),
        (set_to(tokenizer__ggml__eot_token_id="x"), "neither a token id nor a list of them"),
        (set_to(tokenizer__ggml__bos_token_id=float("nan")), "field 'bos_token_id'"),
        (set_to(tokenizer__ggml__pre="of-tomorrow"), "splits text as 'of-tomorrow'"),
        (set_to(tokenizer__ggml__add_sep_token=True), "ggml.add_sep_token = True, which is not"),
        (set_to(tokenizer__ggml__suppress_tokens=[1]), "suppress_tokens = a list of 1, which is"),
        (set_to(tokenizer__ggml__add_bos_token=1), "add_bos_token = 1, neither true nor false"),
        (
            set_to(tokenizer__ggml__new_token_id=1),
            "tokenizer.ggml.new_token_id, which is not known",
        ),
        (set_to(tokenizer__ggml__bos_token_id=None), "adds BOS to texts, and has no bos_token_id"),
        (set_to(tokenizer__ggml__token_type=[1]), "it has 1 types of 261 tokens"),
        (set_to(tokenizer__ggml__token_type=[float("nan")] * 261), "types of tokens that are no"),
        (set_to(tokenizer__ggml__token_type=["a"]), "token_type is not a list of numbers"),
        (set_to(tokenizer__ggml__tokens=[1] * 261), "ggml.tokens is not a list of texts"),
        (set_to(tokenizer__ggml__tokens=["a"] * 261), "it has a token twice"),
        (set_to(tokenizer__ggml__model="rwkv"), "has no usable tokenizer"),
        (set_to(tokenizer__ggml__bos_token_id=9999), "has no usable tokenizer"),
        (set_to(tokenizer__ggml__merges=["x"]), "has no usable tokenizer"),
        (renamed("blk.1.ffn_up.weight", None), "lacks 1 tensors"),
        (
            renamed("blk.1.ffn_up.weight", "blk.1.ffn_up_exps.weight"),
            "which a llama model does not",
        ),
        (renamed("blk.1.ffn_norm.weight", "rope_freqs.weight"), "its rope_freqs are not those"),
    ],
)
def test_metadata_and_tensors_of_another_or_no_model_are_refused(
    spoil: Callable[[GGUFWriter], object], reason: str, tmp_path: Path
) -> None:
    assert reason in message(gguf_files.make("llama", tmp_path, spoil=spoil))


def test_gemma_whose_scores_are_scaled_otherwise_is_refused(tmp_path: Path) -> None:
    file = gguf_files.make("gemma2", tmp_path, head_dim=128)
    assert "has gemma2.attention.key_length = 128" in message(file)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(77, "a tensor is of type 77, which is not known"), (26, "is of type I32, which the package")],
)
def test_type_that_cannot_be_dequantized_is_refused(
    sound: Path, tmp_path: Path, kind: int, reason: str
) -> None:
    name = b"output_norm.weight"
    where = sound.read_bytes().index(name) + len(name) + 4 + 8
    assert reason in message(spoiled(sound, tmp_path / "bad.gguf", at(where, "<I", kind)))


def test_gguf_that_is_not_a_regular_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "fifo.gguf")
    for name, reason in {
        "folder.gguf": "is not a checkpoint: it has no config.json",
        "fifo.gguf": "is not a regular file",
        "missing.gguf": "no such file",
    }.items():
        assert reason in refused(capsys, "build", "--model", tmp_path / name, *BUILD)


def test_folder_that_holds_a_gguf_file_is_refused_with_its_name(sound: Path) -> None:
    with pytest.raises(UserError) as error:
        open_checkpoint(sound.parent)
    assert error.value.hint == f"name the GGUF file itself: --model {sound}"


def test_links_to_a_gguf_file_are_refused(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "build", "--model", sound, "--link-weights", *BUILD)
    assert f"--link-weights cannot link {sound}" in line


def test_missing_gguf_package_is_named_with_its_extra(
    sound: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "the package 'gguf' is not installed" in refused(
        capsys, "build", "--model", sound, *BUILD
    )


def test_missing_gguf_file_is_not_asked_of_the_hub() -> None:
    assert local_path("models/missing.gguf") == Path("models/missing.gguf")
