"""The folder that `snapexport genai` writes, and the builds that it refuses."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.contract.exclusions import refusal
from snapexport.files.whole import sha256_of
from snapexport.genai.parts import weight_files
from tests.refused import refused


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "genai_config.json").read_text())
    return found


def test_folder_holds_all_that_genai_reads(vault: Path, vault_build: Build) -> None:
    names = {path.name for path in vault.iterdir()}
    assert names == {
        *("model.onnx", "weights", "genai_config.json", "snapexport.json"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    model = onnx.load(vault / "model.onnx", load_external_data=False)
    files = weight_files(model)
    assert files == {str(path.relative_to(vault)) for path in (vault / "weights").iterdir()}
    for name in files:
        assert (vault / name).read_bytes() == (vault_build.directory / name).read_bytes()
        assert (vault / name).stat().st_nlink == 1, "a link is refused in a branch"


def test_config_has_what_the_checkpoint_says(vault: Path) -> None:
    config = config_of(vault)
    model = config["model"]
    assert model["context_length"] == config["search"]["max_length"] == 2304
    assert (model["bos_token_id"], model["eos_token_id"], model["pad_token_id"]) == (0, [1], 2)
    assert (model["type"], model["vocab_size"]) == ("decoder", 2002)
    assert "chunk_size" not in config["search"], "votes would not see the question"
    assert config["search"]["do_sample"] is False
    decoder = model["decoder"]
    assert decoder["num_hidden_layers"] == 3, "the record is a layer"
    assert (decoder["num_key_value_heads"], decoder["head_size"]) == (2, 32)
    assert "attention_mask" not in decoder["inputs"]


SAMPLING = (
    ({}, {"do_sample": False, "top_k": 0, "top_p": 1.0}),
    ({"do_sample": True}, {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}),
    (
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.1},
        {
            "do_sample": True,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
            "repetition_penalty": 1.1,
        },
    ),
)


@pytest.mark.parametrize(("recommended", "wanted"), SAMPLING)
def test_sampling_is_the_checkpoints(
    vault_build: Build, tmp_path: Path, recommended: dict[str, Any], wanted: dict[str, Any]
) -> None:
    build, out = tmp_path / "build", tmp_path / "out"
    shutil.copytree(vault_build.directory, build)
    (build / "generation_config.json").write_text(json.dumps(recommended))
    assert main(["genai", str(build), "--out", str(out)]) == 0
    search = config_of(out)["search"]
    of_folder = {"batch_size", "num_beams", "max_length", "past_present_share_buffer"}
    assert {name: search[name] for name in search.keys() - of_folder} == wanted


def test_record_names_the_build(vault: Path, vault_build: Build) -> None:
    record = json.loads((vault / "snapexport.json").read_text())
    assert record["build"] == vault_build.directory.name
    assert record["manifest_sha256"] == sha256_of(vault_build.directory / "manifest.json")
    assert record["build_versions"] == vault_build.manifest.versions


def test_summary_has_a_line_about_the_tokenizer(
    vault_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["genai", str(vault_build.directory), "--out", str(out)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{out}: a folder for onnxruntime-genai"
    assert second.startswith("tokenizer: ") and "add_special_tokens" in second
    assert json.loads((out / "snapexport.json").read_text())["tokenizer"] in second


def test_only_own_folders_are_overwritten(
    vault_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["genai", vault_build.directory, "--out", out]
    assert main([*map(str, command)]) == 0
    capsys.readouterr()
    assert "exists already" in refused(capsys, *command)
    assert main([*map(str, command), "--overwrite"]) == 0
    (out / "snapexport.json").unlink()
    capsys.readouterr()
    assert "it is not overwritten" in refused(capsys, *command, "--overwrite")
    assert (out / "model.onnx").is_file()


def test_folder_inside_the_build_is_refused(
    vault_build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = vault_build.directory / "weights" / "genai"
    assert "is inside the build" in refused(capsys, "genai", vault_build.directory, "--out", inside)
    assert not inside.exists()


def test_directory_without_a_build_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, "genai", tmp_path, "--out", tmp_path / "out")
    assert "is not a build directory" in error


def test_build_without_blocks_is_refused_with_the_flags_that_do(
    tiny_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["genai", str(tiny_build.directory), "--out", str(out)]) == 2
    error, _, hint = capsys.readouterr().err.strip().splitlines()
    assert "`snapexport genai` is not supported for a build with --batch 4" in error
    assert hint == "hint: build it again with --target onnxruntime --batch 1 --extend"
    assert not out.exists()


REFUSED: tuple[tuple[Mapping[str, object], str], ...] = (
    ({"batch": 8}, "--batch 8"),
    ({"graphs": frozenset({"decode"})}, "without --extend"),
    ({"compresses": False, "single_shot": True}, "filled at once"),
    ({"target": "tensorrt"}, "--target tensorrt"),
    ({"tensor_parallel": 2}, "--tensor-parallel 2"),
    ({"dtype": "bf16"}, "a bf16 build"),
    ({"cache_dtype": "int8"}, "--cache-dtype int8"),
    ({"decode_attention": "valid"}, "--decode-attention valid"),
    ({"share_weights": True}, "--share-weights"),
    ({"tokens_per_step": 4}, "--tokens-per-step 4"),
    ({"top_tokens": 64}, "--top-tokens 64"),
    ({"mtp": True}, "--mtp"),
    ({"states": True}, "recurrent states"),
)


@pytest.mark.parametrize(("facts", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_refusal_names_what_a_build_has(facts: Mapping[str, object], named: str) -> None:
    usual = {
        "command": "genai",
        "backend": "onnxruntime",
        "target": "onnxruntime",
        "dtype": "fp32",
        "graphs": frozenset({"decode", "extend"}),
        "compresses": True,
        "batch": 1,
    }
    assert refusal(usual) is None
    error = refusal({**usual, **facts})
    assert error is not None and named in error.message
    assert "build it again" in error.hint or "use " in error.hint
