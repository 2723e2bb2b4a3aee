"""A GGUF file is built as the model, tokenizer and chat template that transformers reads of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")

from gguf import GGMLQuantizationType as Kind
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.exporter.read import open_checkpoint, with_tokenizer
from snapexport.exporter.read.gguf.config import llama3_scaling
from snapexport.exporter.weights.place import place
from snapexport.exporter.weights.tensor_file import NUMPY_DTYPE, Tensor, blocks
from snapexport.files.safetensors import TensorSpan
from snapexport.files.tokenizer_file import TOKENIZER, parse_tokenizer
from tests.builds import build
from tests.exporter import gguf_files

KINDS = (Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_1)
TEXTS = ("the theme", " hé\n\t漢字 👩‍👩‍👧", "a<|end|>b</s>", "  12 345,6")


def values(tensor: Tensor, most: int = 1 << 24) -> Any:
    whole = np.concatenate(list(blocks(tensor, most=most)))
    return whole.astype(np.float32).reshape(tensor.shape)


def by_transformers(file: Path) -> tuple[Any, dict[str, Any]]:
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_config(config)
    read = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)
    return config, {name: tensor.numpy() for name, tensor in read["tensors"].items()}


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, Kind.Q4_0) for name in gguf_files.NAMES] + [("llama", kind) for kind in KINDS],
)
def test_config_and_weights_are_those_of_transformers(
    name: str, kind: Kind, tmp_path: Path
) -> None:
    file = gguf_files.make(name, tmp_path, kind)
    opened = open_checkpoint(file)
    config, expected = by_transformers(file)
    made = AutoConfig.from_pretrained(opened.directory).to_dict()
    apart = {"_name_or_path", "_model_name_or_path", "architectures"}
    assert {k: v for k, v in made.items() if k not in apart} == {
        k: v for k, v in config.to_dict().items() if k not in apart
    }
    assert opened.tensors.keys() == expected.keys()
    for tensor, one in opened.tensors.items():
        np.testing.assert_array_equal(values(one), expected[tensor], err_msg=tensor)


@pytest.mark.parametrize("most", [1, 64, 200, 1 << 20])
def test_tensor_reads_the_same_in_blocks_of_any_size(most: int, tmp_path: Path) -> None:
    tensors = open_checkpoint(gguf_files.make("llama", tmp_path, Kind.Q8_0)).tensors
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.embed_tokens.weight"):
        np.testing.assert_array_equal(values(tensors[name], most), values(tensors[name]))


def test_plain_floats_are_read_in_place(tmp_path: Path) -> None:
    tensors = open_checkpoint(gguf_files.make("llama", tmp_path, Kind.BF16)).tensors
    untouched, turned = tensors["model.layers.0.mlp.up_proj.weight"], "self_attn.q_proj.weight"
    assert isinstance(untouched, TensorSpan) and untouched.dtype == "BF16"
    assert not isinstance(tensors[f"model.layers.0.{turned}"], TensorSpan)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_weights_are_converted_to_the_builds_dtype(dtype: str, tmp_path: Path) -> None:

    opened = open_checkpoint(gguf_files.make("qwen2", tmp_path, Kind.Q4_1))
    placed = place(opened, opened.tensors, dtype, tmp_path / "weights", lambda _: None)
    for name, span in placed.tensors.items():
        expected = values(opened.tensors[name]).astype(NUMPY_DTYPE[span.dtype])
        np.testing.assert_array_equal(values(span), expected.astype(np.float32))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.make("llama", tmp_path_factory.mktemp("gguf"), Kind.Q4_1)


@pytest.fixture(scope="module")
def llama_build(llama: Path) -> Build:
    options = {"L_max": 64, "prefill_chunk": 24, "policy": "full", "weights": "dequantize"}
    return build(llama, llama.parent / "build", **options)


@pytest.mark.slow
def test_graphs_give_the_logits_of_transformers(
    capsys: pytest.CaptureFixture[str], llama: Path, llama_build: Build, tmp_path: Path
) -> None:
    """The full cache of a Llama, and a compressed one of a Qwen2 before it drops a position."""
    qwen2 = gguf_files.make("qwen2", tmp_path, Kind.Q8_0)
    sizes = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24}
    sizes |= {"weights": "dequantize"}
    compressed = build(qwen2, tmp_path / "b", **sizes)
    for file, made, lengths in ((llama, llama_build, ("12", "60")), (qwen2, compressed, ("12",))):
        flags = ["--json", "--steps", "4", "--lengths"]
        assert main(["diff", str(made.directory), "--model", str(file), *flags, *lengths]) == 0
        rows = json.loads(capsys.readouterr().out)["differences"]
        assert rows and all(row["passed"] and row["lossless"] for row in rows)


def test_tokenizer_chat_template_and_end_tokens_are_taken_along(
    llama: Path, llama_build: Build
) -> None:
    expected = AutoTokenizer.from_pretrained(llama.parent, gguf_file=llama.name)
    directory = llama_build.directory
    text = (directory / TOKENIZER).read_text()
    tokenizer = parse_tokenizer(text, directory / TOKENIZER)
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert ids == expected(text)["input_ids"]
        assert ids[0] == gguf_files.TOKENS.index("<s>")
    assert (directory / "chat_template.jinja").read_text() == gguf_files.TEMPLATE
    assert llama_build.manifest.model.eos_token_id == [gguf_files.END, gguf_files.END_OF_TURN]
    config = json.loads((directory / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_tokenizer_of_sentencepiece_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    file = gguf_files.make(name, tmp_path, spoil=gguf_files.write_pieces)
    expected = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    opened = open_checkpoint(file)
    path = with_tokenizer(opened) / TOKENIZER
    tokenizer = parse_tokenizer(path.read_text(), path)
    for text in TEXTS if name == "gemma2" else TEXTS[:1]:
        assert tokenizer.encode(text).ids == expected(text)["input_ids"]
    # As in llama.cpp, Llama's begin with a space even if they have one, also after special tokens.
    prefix = ["▁"] if name == "llama" else []
    assert tokenizer.encode(" the").tokens == ["<s>", *prefix, "▁the"]
    assert tokenizer.encode("a<|end|>m").tokens[-1 - len(prefix) :] == [*prefix, "m"]
    assert tokenizer.decode(tokenizer.encode("the  theme").ids) == "the  theme"
    assert tokenizer.get_vocab_size() == len(gguf_files.TOKENS)


def test_file_without_a_tokenizer_is_built_without(tmp_path: Path) -> None:
    opened = open_checkpoint(gguf_files.make("qwen2", tmp_path, tokenizer=False, vocab_size=99))
    names = {file.name for file in with_tokenizer(opened).iterdir()}
    assert names == {"config.json", "generation_config.json"}


def test_plan_reads_a_gguf_file(capsys: pytest.CaptureFixture[str], llama: Path) -> None:
    assert main(["plan", "--model", str(llama), "--L-max", "64", "--memory", "1GiB"]) == 0
    assert f"snapexport build --model {llama}" in capsys.readouterr().out.replace("\n", "")


def test_gguf_config_folder_is_removed_with_its_checkpoint(tmp_path: Path) -> None:
    opened = open_checkpoint(gguf_files.make("llama", tmp_path))
    folder = opened.directory
    assert folder.is_dir()
    del opened
    assert not folder.exists()


def test_frequency_factors_of_llama3_become_its_rope_scaling(tmp_path: Path) -> None:
    """The expected factors are those of transformers' own RoPE."""
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    long = {"max_position_embeddings": 131072}
    config = AutoConfig.for_model("llama", head_dim=64, rope_parameters=rope, **long)
    plain = 500000.0 ** -(np.arange(32) / 32)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    factors = (plain / scaled.numpy()).astype(np.float32)
    assert llama3_scaling(factors, 500000.0) == pytest.approx(
        {key: value for key, value in rope.items() if key != "rope_theta"}
    )


@pytest.mark.parametrize(
    ("name", "kind", "where"),
    [("llama", "linear", ()), ("qwen2", "yarn", ()), ("gemma3", "linear", ("full_attention",))],
)
def test_scaling_of_rope_is_taken_from_the_metadata(
    name: str, kind: str, where: tuple[str, ...], tmp_path: Path
) -> None:
    keys = {"type": kind, "factor": 4.0, "original_context_length": 256}
    spoil = gguf_files.set_to(**{f"{name}__rope__scaling__{k}": v for k, v in keys.items()})
    rope = open_checkpoint(gguf_files.make(name, tmp_path, spoil=spoil)).config["rope_parameters"]
    for layers in where:
        rope = rope[layers]
    assert (rope["rope_type"], rope["factor"]) == (kind, 4.0)
    assert rope.get("original_max_position_embeddings") == (256 if kind == "yarn" else None)
