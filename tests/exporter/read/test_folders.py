"""What --model names is read, or told for what it is, with a hint that leads on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from snapexport.builder.options import BuildOptions
from snapexport.builder.resolved import resolve
from snapexport.cli.app import main
from snapexport.errors import UserError
from snapexport.exporter.read import local_path, open_checkpoint
from snapexport.exporter.read.folders import SHARD_INDEX
from tests.refused import refused

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 9\n"
ADAPTER = json.dumps({"base_model_name_or_path": "owner/base", "peft_type": "LORA"})


def told(path: Path) -> str:
    """The message and the hint."""
    with pytest.raises(UserError) as error:
        resolve(BuildOptions.of(model=str(path), out=path.parent / "out", L_max=64))
    return f"{error.value.message}\n{error.value.hint}"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["it has no config.json, and it is empty"]),
        ({"README.md": ""}, ["it has no config.json", "save_pretrained"]),
        (
            {"adapter_config.json": ADAPTER, "adapter_model.safetensors": "x"},
            ["is a LoRA adapter of owner/base", "--model owner/base --adapter "],
        ),
        ({"adapter_config.json": "{"}, ["is a LoRA adapter\n", "--model BASE --adapter "]),
        ({"consolidated.safetensors": "x", "params.json": "{}"}, ["Mistral's own layout"]),
        ({"consolidated.00.pth": "x", "params.json": "{}"}, ["Meta's own layout", "the one above"]),
        ({"original/consolidated.00.pth": "x"}, ["Meta's own layout"]),
        ({"model_index.json": "{}", "unet/config.json": "{}"}, ["pipeline of diffusers"]),
        ({"onnx/model.onnx": "x"}, ["an ONNX export"]),
        ({"genai_config.json": "{}", "model.onnx": "x"}, ["onnxruntime-genai"]),
        ({"openvino_model.xml": "", "openvino_model.bin": ""}, ["a model of OpenVINO"]),
        ({"model.mlpackage/Manifest.json": "{}"}, ["Core ML"]),
        ({"a.Q4_K_M.gguf": "x"}, ["name the GGUF file itself: --model ", "a.Q4_K_M.gguf"]),
        ({"a.gguf": "x", "b.gguf": "x"}, ["name one of its 2 GGUF files: a.gguf, b.gguf"]),
        (
            {"a-00001-of-00002.gguf": "x", "a-00002-of-00002.gguf": "x", "mmproj-a.gguf": "x"},
            ["name the GGUF file itself", "a-00001-of-00002.gguf"],
        ),
        ({"checkpoint-500/config.json": "{}"}, ["a checkpoint inside", "checkpoint-500"]),
        ({"a/config.json": "{}", "x.build/manifest.json.sha256": ""}, ["a checkpoint inside"]),
        ({"snapshots/abc/config.json": "{}"}, ["the Hub's cache", "snapshots/abc"]),
        ({"model.safetensors": "x"}, ["download config.json of the same repository"]),
        ({"manifest.json": "{}", "manifest.json.sha256": ""}, ["it is a build already"]),
    ],
)
def test_error_of_a_folder_without_config_says_what_the_folder_is(
    files: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    (folder := tmp_path / "model").mkdir()
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    found = told(folder)
    assert f"{folder} is not a checkpoint" in found
    for word in words:
        assert word in found


@pytest.fixture
def mine(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(checkpoint, tmp_path / "mine"))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["has no model.safetensors"]),
        (
            {"model-00001-of-00003.safetensors": "x", "model-00003-of-00003.safetensors": "x"},
            ["2 of its 3 shards", "from number 2 on", "download model.safetensors.index.json"],
        ),
        ({"pytorch_model.bin": "x"}, ["weights as pickles", "from_pretrained(FOLDER)"]),
        ({"model.pt": "x"}, ["weights as pickles"]),
        ({"weights.safetensors": "x"}, ["rename weights.safetensors to model.safetensors"]),
        ({"consolidated.safetensors": "x"}, ["weights in Mistral's own layout"]),
        ({"original/consolidated.00.pth": "x"}, ["weights in Meta's own layout"]),
        ({"tf_model.h5": "x"}, ["weights of TensorFlow or Flax"]),
        ({"a.gguf": "x"}, ["name the GGUF file itself"]),
        ({"onnx/model.onnx": "x"}, ["an ONNX export"]),
        ({"adapter_config.json": ADAPTER}, ["a LoRA adapter of owner/base"]),
    ],
)
def test_error_of_a_config_without_weights_says_what_else_there_is(
    files: dict[str, str], words: list[str], mine: Path
) -> None:
    (mine / "model.safetensors").unlink()
    for name, text in files.items():
        (mine / name).parent.mkdir(exist_ok=True)
        (mine / name).write_text(text)
    found = told(mine)
    for word in words:
        assert word in found


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", SHARD_INDEX, "tokenizer.json", "chat_template.jinja"],
)
def test_pointers_of_git_lfs_are_refused(name: str, mine: Path) -> None:
    (mine / name).write_text(POINTER)
    found = told(mine)
    assert f"in the place of 1 files, among them {name}" in found
    assert f"git -C {mine} lfs pull" in found


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_links_to_nothing_are_refused(name: str, mine: Path) -> None:
    (mine / name).unlink(missing_ok=True)
    (mine / name).symlink_to("../blobs/abc")
    assert f"{name} is a link to ../blobs/abc, which is not there" in told(mine)


ENDS = ("part", "incomplete", "tmp", "crdownload", "aria2", "PARTIAL")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_unfinished_download_is_named(name: str, end: str, mine: Path) -> None:
    (mine / name).unlink(missing_ok=True)
    (mine / f"{name}.{end}").write_text("x")
    found = told(mine)
    assert f"{name}.{end} is a download that has not ended" in found
    assert f"let the download of {name} end" in found


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("Unconfirmed 12.crdownload", "Unconfirmed 12.crdownload is a download"),
        (".cache/huggingface/download/abc.def.incomplete", "abc.def.incomplete is a download"),
        ("model-00002-of-00002.safetensors.part", "has no model-00002-of-00002.safetensors: "),
    ],
)
def test_unfinished_download_of_a_shard_is_named(path: str, said: str, mine: Path) -> None:
    (mine / "model.safetensors").rename(mine / "model-00001-of-00002.safetensors")
    index = dict.fromkeys(load_file(mine / "model-00001-of-00002.safetensors"), "")
    index = {name: f"model-0000{1 + ('norm' in name)}-of-00002.safetensors" for name in index}
    (mine / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (mine / path).parent.mkdir(parents=True, exist_ok=True)
    (mine / path).write_text("x")
    assert said in told(mine)


def test_file_that_aria2_still_fills_is_refused(mine: Path) -> None:
    (mine / "model.safetensors.aria2").write_text("x")
    assert "model.safetensors is not whole: model.safetensors.aria2" in told(mine)


@pytest.mark.parametrize("given", ["m.gguf", "m.gguf.part"])
def test_unfinished_gguf_file_is_named(given: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf.part").write_text("x")
    assert "m.gguf.part is a download that has not ended" in told(tmp_path / given)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(UserError, match="--model is empty"):
        local_path("")


def test_pointer_in_the_place_of_a_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text(POINTER)
    assert "git-lfs" in told(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.safetensors", "name its folder, which has config.json too: --model "),
        ("config.json", "name its folder"),
        ("pytorch_model.bin", "weights as pickles"),
        ("model.onnx", "an ONNX export"),
        ("notes.txt", "is not a GGUF file: it begins with b'0000'"),
    ],
)
def test_error_of_another_file_than_gguf_says_what_it_is(name: str, words: str, mine: Path) -> None:
    (mine / name).write_bytes(b"0" * 2000)
    assert words in told(mine / name)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}, "an encoder with"),
        ({"architectures": ["BertModel"], "model_type": "clip"}, "architecture BertModel of a"),
        ({"architectures": ["X"], "model_type": "x"}, "the architecture X of a model_type 'x'"),
        (
            {"architectures": ["X"], "model_type": "x", "text_config": {"model_type": "qwen2"}},
            "its text part is a 'qwen2': save only that part with transformers, as Qwen2",
        ),
        (
            {
                "architectures": ["X"],
                "model_type": "x",
                "a": {"text_config": {"model_type": "llama"}},
            },
            "as LlamaForCausalLM, and build it",
        ),
    ],
)
@pytest.mark.parametrize("spoil", [lambda m: None, lambda m: (m / "model.safetensors").unlink()])
def test_architecture_is_judged_before_fields_and_weights(
    changes: dict[str, object], words: str, spoil: Callable[[Path], object], mine: Path
) -> None:
    config = json.loads((mine / "config.json").read_text()) | {"vocab_size": "many"} | changes
    (mine / "config.json").write_text(json.dumps(config))
    spoil(mine)
    assert words in told(mine)


def test_hints_reach_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "adapter_config.json").write_text(ADAPTER)
    flags = ("build", "--model", tmp_path, "--L-max", 64, "--out", tmp_path / "out")
    assert "LoRA adapter of owner/base" in refused(capsys, *flags)
    assert "LoRA adapter of owner/base" in refused(
        capsys, "plan", "--model", tmp_path, "--L-max", 64, "--memory", "1GiB"
    )


def test_folder_beside_other_files_is_read(mine: Path) -> None:
    """What a published repository has besides."""
    save_file(load_file(mine / "model.safetensors"), mine / "consolidated.safetensors")
    for name in ("model.onnx", "pytorch_model.bin", "a.gguf", "training_args.bin", "README.md"):
        (mine / name).write_text("x")
    (mine / "original").mkdir()
    (mine / "original/consolidated.00.pth").write_text("x")
    assert open_checkpoint(mine).tensors
    assert main(["plan", "--model", str(mine), "--L-max", "64", "--memory", "1GiB"]) == 0


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["a.Q4.gguf", "b.gguf", "config.json"],
            "`hf download owner/name a.Q4.gguf --local-dir .`",
        ),
        (["adapter_config.json", "adapter_model.safetensors"], "a LoRA adapter of owner/base"),
        (["pytorch_model.bin", "config.json"], "weights as pickles"),
        (["onnx/model.onnx", "config.json"], "an ONNX export"),
        (["README.md"], "has no config.json"),
    ],
)
def test_error_of_a_repository_of_the_hub_says_which_other_weights_it_has(
    names: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "commit").mkdir()
    (folder / "adapter_config.json").write_text(ADAPTER)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    monkeypatch.setattr("huggingface_hub.list_repo_files", lambda *_, **__: names)
    if "adapter_config.json" not in names:
        (folder / "adapter_config.json").unlink()
    with pytest.raises(UserError) as error:
        open_checkpoint(local_path("owner/name"))
    assert words in f"{error.value.message} {error.value.hint}"


def test_error_of_another_class_of_the_same_model_says_the_name_to_write(mine: Path) -> None:
    config = json.loads((mine / "config.json").read_text()) | {"architectures": ["LlamaModel"]}
    (mine / "config.json").write_text(json.dumps(config))
    assert 'write "architectures": ["LlamaForCausalLM"] into config.json' in told(mine)
