"""A checkpoint that contradicts itself is refused before anything is traced."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from snapexport.builder import resolved
from snapexport.builder.options import BuildOptions
from snapexport.builder.texts import read_texts
from snapexport.errors import UserError
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.read.config_fields import FIELDS
from snapexport.exporter.read.folders import SHARD_INDEX
from snapexport.exporter.read.number_types import with_types
from snapexport.exporter.weights.place import recorded_sha256
from snapexport.exporter.weights.tensor_file import blocks
from tests.refused import refused as refused_by

SINGLE = "model.safetensors"


@pytest.fixture
def mine(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(checkpoint, tmp_path / "mine"))


def change(directory: Path, file: str = "config.json", **fields: Any) -> None:
    content = json.loads((directory / file).read_text()) | fields
    (directory / file).write_text(json.dumps(content))


def change_rope(directory: Path, **fields: Any) -> None:
    rope = json.loads((directory / "config.json").read_text())["rope_parameters"]
    change(directory, rope_parameters=rope | fields)


def resolve(directory: Path) -> tuple[str, ...]:
    """What a build leaves out."""

    options = BuildOptions.of(model=str(directory), out=directory / "out", L_max=64)
    return resolved.resolve(options).stored.left_out


def refused(directory: Path) -> str:
    with pytest.raises(UserError) as error:
        resolve(directory)
    return error.value.message


def test_checkpoint_without_faults_is_resolved(mine: Path) -> None:
    resolve(mine)


@pytest.mark.parametrize("field", ["vocab_size", "num_hidden_layers", "head_dim", "rms_norm_eps"])
@pytest.mark.parametrize("value", [0, -1, 2**63, 1e300, True, "1", [1], {}])
def test_number_outside_of_its_range_is_refused_by_name(mine: Path, field: str, value: Any) -> None:
    change(mine, **{field: value})
    assert field in refused(mine)


@pytest.mark.parametrize("field", FIELDS)
def test_every_bounded_field_is_refused_as_a_text(mine: Path, field: str) -> None:
    change(mine, **{field: "x"})
    assert f"config.json: {field} is 'x', not a" in refused(mine)


@pytest.mark.parametrize(
    "value", ["Infinity", "-Infinity", "NaN", "1e999", "9" * 4000, '"\\u0000"']
)
def test_number_in_a_field_that_nobody_reads_may_be_anything(mine: Path, value: str) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        text = (mine / name).read_text() if (mine / name).exists() else "{}"
        fields = text.rstrip().removesuffix("}").rstrip() or "{"
        comma = "" if fields.endswith("{") else ","
        (mine / name).write_text(f'\ufeff{fields}{comma} "unread": {value}}}')
    resolve(mine)


def test_last_of_a_repeated_key_is_read(mine: Path) -> None:
    text = (mine / "config.json").read_text()
    (mine / "config.json").write_text(f'{{"hidden_size": 1, "model_type": "x", {text.lstrip()[1:]}')
    (mine / "tokenizer_config.json").write_text('{"a": {"b": 1, "b": 2}}')
    names = {"hidden_size": "config", "model_type": "config", "b": "tokenizer_config"}
    said = (f"{file}.json has '{key}' twice: the last is read" for key, file in names.items())
    assert resolve(mine) == tuple(said)
    assert open_checkpoint(mine).config["hidden_size"] == 64


@pytest.mark.parametrize("kind", ["llama", "gemma3-text-part", "yarn"])
def test_numbers_of_the_other_type_are_read_as_their_fields(
    kind: str, mine: Path, tmp_path: Path
) -> None:
    plain = json.loads((mine / "config.json").read_text())
    del plain["pretraining_tp"]
    if kind == "yarn":
        rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0}
        plain["rope_parameters"] = rope | {"original_max_position_embeddings": 64}
    if kind == "gemma3-text-part":
        plain = {"model_type": "gemma3", "text_config": {**plain, "model_type": "gemma3_text"}}
    plain["quantization_config"] = {"bits": 4, "zero": [1, 2]}
    found, changed = with_types(all_as(float, plain))
    assert found == with_types(plain)[0] and repr(found) == repr(with_types(plain)[0])
    assert "hidden_size as 64" in changed and "bits as 4" in changed
    again, said = with_types(all_as(int, plain))
    assert again == plain and not said


def all_as(kind: type, value: Any) -> Any:
    """With whole numbers as floats, or with floats that are whole as integers."""
    if isinstance(value, dict):
        return {name: all_as(kind, one) for name, one in value.items()}
    if isinstance(value, list):
        return [all_as(kind, one) for one in value]
    whole = type(value) in (int, float) and float(value).is_integer()
    return kind(value) if whole else value


def test_config_with_numbers_of_the_other_type_is_resolved(mine: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        fields = all_as(float, json.loads((mine / name).read_text()))
        change(mine, name, **fields)
    said = resolve(mine)
    assert said[0].startswith("config.json: read ") and "generation_config.json: read" in said[1]


def test_nan_in_a_field_that_is_read_is_refused_by_name(mine: Path) -> None:
    change(mine, rms_norm_eps=float("nan"))
    assert "rms_norm_eps is nan" in refused(mine)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"num_key_value_heads": 3},
            "num_attention_heads 4 is not a multiple of",
        ),
        ({"head_dim": 17}, "`head_dim`=17"),
        ({"head_dim": None, "hidden_size": 66}, "hidden size (66)"),
        ({"hidden_act": "sigh"}, "hidden_act 'sigh' is not known"),
        ({"eos_token_id": 257}, "the vocabulary has 257 tokens"),
        ({"eos_token_id": True}, "eos_token_id"),
        ({"architectures": 1}, "the architecture 1"),
        ({"architectures": [["x"]]}, "the architecture"),
        ({"num_hidden_layers": 300}, "config.json wants 300 layers"),
        ({"num_hidden_layers": 3}, "lacks 9 tensors"),
        ({"intermediate_size": 113}, "config.json wants [113, 64]"),
        ({"tie_word_embeddings": True}, "config.json ties lm_head.weight"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings is 2147483648"),
    ],
)
def test_contradicting_config_is_refused_by_the_fields_name(
    mine: Path, fields: dict[str, Any], message: str
) -> None:
    (mine / "generation_config.json").unlink()
    change(mine, **fields)
    assert message in refused(mine)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"factor": 0}, "factor is 0"),
        ({"factor": "8"}, "factor"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"rope_theta": [1]}, "rope_theta"),
        ({"low_freq_factor": 7}, "low_freq_factor 7 is not below high_freq_factor 4.0"),
        ({"rope_type": "yarn", "factor": 1e6}, "RoPE's factor makes"),
    ],
)
def test_rope_that_cannot_be_calculated_is_refused(
    mine: Path, fields: dict[str, Any], message: str
) -> None:
    if fields.get("rope_type") == "yarn":
        change(mine, max_position_embeddings=1 << 20)
        fields = fields | {"original_max_position_embeddings": 1 << 20}
    change_rope(mine, **fields)
    assert message in refused(mine)


def test_end_token_of_generation_config_is_in_the_vocabulary(mine: Path) -> None:
    change(mine, "generation_config.json", eos_token_id=[2, 10**30])
    assert "neither a token id nor a list of them" in refused(mine)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weight_without_a_finite_value_is_refused(mine: Path, value: float) -> None:
    weights = load_file(mine / SINGLE)
    weights["model.norm.weight"][:] = value
    save_file(weights, mine / SINGLE)
    assert refused(mine) == "every value of the tensor model.norm.weight is NaN or infinite"


def test_tied_weight_may_be_stored_twice_if_it_is_the_same(mine: Path) -> None:
    weights = load_file(mine / SINGLE)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    save_file(weights, mine / SINGLE)
    change(mine, tie_word_embeddings=True)
    resolve(mine)


@pytest.mark.parametrize("values", [np.zeros, np.ones])
def test_a_tensor_that_config_has_no_place_for_is_named_unless_it_is_zero(
    values: Any, mine: Path
) -> None:
    tensors, layer = load_file(mine / SINGLE), "model.layers.1.self_attn.q_proj"
    more = {f"{layer}.bias": values(64), f"{layer}.lora_A.weight": values((4, 64))}
    more |= {
        "model.layers.9.mlp.up_proj.weight": values(9),
        "model.rotary_emb.inv_freq": np.ones(8),
    }
    tensors |= {name: one.astype(np.float32) for name, one in more.items()}
    save_file(tensors, mine / SINGLE)
    told = f"left out, as config.json has no place for it: {layer}.bias and 2 more"
    assert resolve(mine) == ((told,) if values is np.ones else ())


def test_an_adapter_beside_the_weights_is_reported(mine: Path) -> None:
    (mine / "adapter_config.json").write_text("{}")
    (told,) = resolve(mine)
    assert told.startswith("left out: the LoRA adapter")


@pytest.mark.parametrize("part", ["qweight", "weight_packed"])
def test_packed_weights_without_a_quantization_are_refused(part: str, mine: Path) -> None:
    name = f"model.layers.0.self_attn.q_proj.{part}"
    save_file(load_file(mine / SINGLE) | {name: np.zeros((8, 8), np.int32)}, mine / SINGLE)
    assert f"as the tensor {name} shows, and config.json has no quantization_config" in refused(
        mine
    )


@pytest.mark.parametrize("where", ["compression_config", "text_config"])
def test_a_quantization_is_found_elsewhere_too(where: str, mine: Path) -> None:
    found = {"format": "naive", "config_groups": {}}
    method = {"quantization_config": found | {"quant_method": "compressed-tensors"}}
    change(mine, **{where: found if where == "compression_config" else method})
    assert "format 'naive'" in refused(mine)


def shard(directory: Path, **weight_map: str) -> None:
    """Two shards, and an index with the given entries changed."""
    weights = load_file(directory / SINGLE)
    (directory / SINGLE).unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, directory / file)
    mapped = {name: file for file, part in parts.items() for name in part} | weight_map
    (directory / SHARD_INDEX).write_text(json.dumps({"weight_map": mapped}))


@pytest.mark.parametrize("place", ["../mine/b.safetensors", "/dev/zero", "", ".", "a\0"])
def test_index_that_names_a_file_elsewhere_is_refused(mine: Path, place: str) -> None:
    shard(mine, **{"model.norm.weight": place})
    with pytest.raises(UserError, match="not the name of a file beside it"):
        open_checkpoint(mine)


NORM = "model.norm.weight"


def test_index_decides_which_of_two_copies_is_read(mine: Path) -> None:
    right = load_file(mine / SINGLE)[NORM]
    shard(mine)
    wrong = load_file(mine / "a.safetensors") | {NORM: right + 1}
    save_file(wrong, mine / "a.safetensors")
    shutil.copy(mine / "a.safetensors", mine / "a (1).safetensors")
    assert resolve(mine) == (
        f"not read: {NORM} in a.safetensors, which {SHARD_INDEX} does not assign to it",
        f"not read: a (1).safetensors, besides {SHARD_INDEX}",
    )
    (read,) = blocks(open_checkpoint(mine).tensors[NORM])
    assert np.array_equal(read, right)


@pytest.mark.parametrize("named", ["a.safetensors", None])
def test_a_tensor_is_read_from_the_shard_that_has_it(named: str | None, mine: Path) -> None:
    right = load_file(mine / SINGLE)[NORM]
    shard(mine, **({NORM: named} if named else {}))
    index = json.loads((mine / SHARD_INDEX).read_text())["weight_map"]
    if named is None:
        del index[NORM]
    for file in ("a.safetensors", "b.safetensors"):
        (mine / "shards").mkdir(exist_ok=True)
        (mine / file).rename(mine / "shards" / file)
    index = {name: f"shards/{file}" for name, file in index.items()}
    (mine / SHARD_INDEX).write_text(json.dumps({"weight_map": index}))
    said = f"in shards/b.safetensors, which {SHARD_INDEX} does not assign to it"
    assert resolve(mine) == (f"read if needed: {NORM} {said}",)
    (read,) = blocks(open_checkpoint(mine).tensors[NORM])
    assert np.array_equal(read, right)


@pytest.mark.parametrize("dtype", ["int16", "uint8", "bool", "complex64"])
def test_a_weight_of_no_float_is_refused_before_tracing(dtype: str, mine: Path) -> None:
    tensors = load_file(mine / SINGLE)
    save_file(tensors | {NORM: tensors[NORM].astype(dtype)}, mine / SINGLE)
    assert f"the tensor {NORM} is stored as" in refused(mine)


def test_floats_of_64_bits_are_narrowed(mine: Path) -> None:
    tensors = load_file(mine / SINGLE)
    save_file({n: one.astype(np.float64) / 3 for n, one in tensors.items()}, mine / SINGLE)
    assert resolve(mine) == ()
    (read,) = blocks(open_checkpoint(mine).tensors[NORM])
    assert read.dtype == np.float32
    assert np.array_equal(read, (tensors[NORM].astype(np.float64) / 3).astype(np.float32))


def test_single_file_is_read_unless_it_is_a_shard(mine: Path) -> None:
    tensors = load_file(mine / SINGLE)
    shard(mine)
    (mine / "a.safetensors").rename(mine / SINGLE)
    index = json.loads((mine / SHARD_INDEX).read_text())["weight_map"]
    index = {name: SINGLE if file == "a.safetensors" else file for name, file in index.items()}
    (mine / SHARD_INDEX).write_text(json.dumps({"weight_map": index}))
    assert resolve(mine) == ()
    save_file(tensors, mine / SINGLE)
    (mine / "model-1.safetensors").write_text("of another version, and damaged")
    (mine / SHARD_INDEX).write_text('{"weight_map": {"model.norm.weight": "model-1.safetensors"}}')
    assert resolve(mine) == (f"not read: b.safetensors and 1 more, besides {SINGLE}",)


@pytest.mark.parametrize("file", ["b.safetensors", "c.safetensors"])
def test_what_an_index_names_and_nothing_needs_may_be_absent(mine: Path, file: str) -> None:
    shard(mine, **{"mtp.fc.weight": file})
    assert resolve(mine) == (
        f"{SHARD_INDEX} names mtp.fc.weight, which no file has and nothing needs",
    )


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("a.safetensors", f"names the tensor {NORM}, a.safetensors lacks it"),
        ("c.safetensors", "has no c.safetensors"),
    ],
)
def test_what_an_index_names_and_a_model_needs_is_refused_by_name(
    mine: Path, file: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shard(mine, **{NORM: file, "mtp.fc.weight": "d.safetensors"})
    others = load_file(mine / "b.safetensors")
    if file == "a.safetensors":
        del others[NORM]
    save_file(others, mine / "b.safetensors")
    assert words in refused(mine)
    command = ("plan", "--model", mine, "--L-max", 64, "--memory", "1GiB")
    assert words in refused_by(capsys, *command)
    (mine / "b.safetensors").unlink()
    assert words in refused(mine) or "has no b.safetensors" in refused(mine)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", b"{}", "tokenizer.json cannot be read"),
        ("tokenizer.json", b"\xff", "not UTF-8"),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
        ("chat_template.jinja", bytes(2 << 20), "at most 1048576 are read"),
    ],
)
def test_broken_text_of_a_checkpoint_is_refused(
    mine: Path, file: str, content: bytes, message: str
) -> None:
    (mine / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_texts(mine)


def test_template_for_tools_is_copied_from_its_folder(mine: Path) -> None:
    name = "additional_chat_templates/tool_use.jinja"
    (mine / name).parent.mkdir()
    (mine / name).write_text("{{ tools }}")
    assert read_texts(mine)[name] == b"{{ tools }}"


@pytest.mark.parametrize("time", ["nan", "1e999", "x", "-1"])
def test_hash_of_the_hub_with_a_broken_time_is_not_used(tmp_path: Path, time: str) -> None:
    (tmp_path / "x").touch()
    metadata = tmp_path / ".cache/huggingface/download/x.metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"commit\n{'0' * 64}\n{time}\n")
    assert recorded_sha256(tmp_path / "x") is None
