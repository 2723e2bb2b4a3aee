"""Weights are copied, or converted exactly to another dtype; missing ones are refused."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.exporter.read.folders import COPIED, READ, SHARD_INDEX
from tests.builds import build
from tests.oracle import cases, checkpoints


def weights_of(made: Build) -> dict[str, torch.Tensor]:
    """All tensors of a build's weight files."""
    files = [made.directory / weights.file for weights in made.manifest.weights]
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def is_same(tensors: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return tensors.keys() == others.keys() and all(
        torch.equal(tensor, others[name]) for name, tensor in tensors.items()
    )


def test_each_weight_has_one_file_of_its_own(checkpoint: Path, tmp_path: Path) -> None:
    made = build(checkpoint, tmp_path / "b", L_max=32, baseline=True)
    original = load_file(checkpoint / "model.safetensors")
    files = {f"weights/{name}.safetensors" for name in original}
    assert {weights.file for weights in made.manifest.weights} == files
    assert {path.name for path in made.directory.iterdir() if path.is_dir()} == {"weights"}
    assert {f"weights/{path.name}" for path in (made.directory / "weights").iterdir()} == files
    assert all((made.directory / file).stat().st_nlink == 1 for file in files)
    assert is_same(weights_of(made), original)
    assert not made.manifest.linked_weights


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    model = cases.checkpoint("qwen2-tied")
    made = build(model, tmp_path / "b", L_max=32)
    names = {Path(weights.file).name for weights in made.manifest.weights}
    assert "model.embed_tokens.weight.safetensors" in names
    assert "lm_head.weight.safetensors" not in names


@pytest.mark.parametrize("stored", ["lm_head.weight", "embed_tokens.weight"])
def test_tied_weights_are_read_by_whichever_name_transformers_takes(
    stored: str, tmp_path: Path
) -> None:
    """The head's name alone, or the embedding's without the decoder's prefix."""
    model = Path(shutil.copytree(cases.checkpoint("qwen2-tied"), tmp_path / "m"))
    weights = load_file(model / "model.safetensors")
    weights[stored] = weights.pop("model.embed_tokens.weight")
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    theirs = AutoModelForCausalLM.from_pretrained(model).state_dict()["model.embed_tokens.weight"]
    made = weights_of(build(model, tmp_path / "b", L_max=32))
    assert torch.equal(made["model.embed_tokens.weight"], theirs)
    assert "lm_head.weight" not in made
    assert main(["plan", "--model", str(model), "--L-max", "64", "--memory", "1GiB"]) == 0


def test_a_sharded_checkpoint_gives_the_same_build_as_a_whole_one(tmp_path: Path) -> None:
    whole = checkpoints.make("qwen3", tmp_path / "whole")
    sharded = checkpoints.make("qwen3", tmp_path / "sharded", max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    builds = [build(m, tmp_path / f"{m.name}.b", L_max=32) for m in (whole, sharded)]
    first, second = (weights_of(made) for made in builds)
    assert is_same(first, second)


def test_link_weights_hard_links_whole_shards(tmp_path: Path) -> None:
    model = checkpoints.make("qwen3", tmp_path / "m", max_shard_size="100KB")
    made = build(model, tmp_path / "b", L_max=32, link_weights=True, baseline=True)
    shards = sorted(model.glob("*.safetensors"))
    assert [weights.file for weights in made.manifest.weights] == [
        f"weights/{shard.name}" for shard in shards
    ]
    assert all((made.directory / "weights" / shard.name).samefile(shard) for shard in shards)
    assert made.manifest.linked_weights
    assert made.verify_weights() == []


def test_link_weights_without_hard_links_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    with pytest.raises(UserError, match=r"--link-weights cannot link .*cross-device"):
        build(checkpoint, tmp_path / "b", L_max=32, link_weights=True)
    assert not (tmp_path / "b").exists()


def test_weights_of_another_dtype_are_converted_exactly(tmp_path: Path) -> None:
    model = checkpoints.make("llama", tmp_path / "m", dtype=torch.bfloat16)
    made = build(model, tmp_path / "b", L_max=32, dtype="fp32")
    original = load_file(model / "model.safetensors")
    assert is_same(weights_of(made), {name: one.float() for name, one in original.items()})
    assert made.verify_weights() == []


def test_only_the_tensors_of_another_dtype_are_converted(tmp_path: Path) -> None:
    model = checkpoints.make("llama", tmp_path / "m")
    file = model / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].half()
    save_file(tensors, file)
    made = build(model, tmp_path / "b", L_max=32, dtype="fp32", link_weights=True)
    assert {Path(weights.file).name for weights in made.manifest.weights} == {
        "model.safetensors",
        "model.norm.weight.safetensors",
    }
    converted = load_file(made.directory / "weights/model.norm.weight.safetensors")
    assert torch.equal(converted["model.norm.weight"], tensors["model.norm.weight"].float())
    assert (made.directory / "weights/model.safetensors").samefile(file)
    assert made.manifest.linked_weights


def test_linked_weight_file_takes_its_hash_from_the_hub_cache(tmp_path: Path) -> None:
    """A snapshot of the Hub's cache is symlinks to blobs that have their hash for a name."""
    model, blob = tmp_path / "m", tmp_path / "blobs" / ("ab" * 32)
    checkpoints.make("llama", model)
    blob.parent.mkdir()
    (model / "model.safetensors").rename(blob)
    (model / "model.safetensors").symlink_to(blob)
    made = build(model, tmp_path / "b", L_max=32, link_weights=True)
    (weights,) = made.manifest.weights
    assert weights.sha256 == "ab" * 32
    assert not (made.directory / weights.file).is_symlink()


@pytest.mark.parametrize("clash", ["model.safetensors", "model.norm.weight.safetensors"])
def test_linked_shards_with_equal_names_are_never_overwritten(tmp_path: Path, clash: str) -> None:
    """Shards that resolve to files of one name, or of a name that conversion uses."""
    model = checkpoints.make("llama", tmp_path / "m", max_shard_size="100KB")
    shards = sorted(model.glob("*.safetensors"))
    norm = load_file(shards[-1])
    save_file({name: tensor.half() for name, tensor in norm.items()}, shards[-1])
    for number, shard in enumerate(shards):
        (tmp_path / str(number)).mkdir()
        shard.rename(tmp_path / str(number) / clash)
        shard.symlink_to(tmp_path / str(number) / clash)
    before = [shard.read_bytes() for shard in shards]
    made = build(model, tmp_path / "b", L_max=32, link_weights=True)
    assert [shard.read_bytes() for shard in shards] == before
    assert made.verify_weights() == []
    assert len(made.manifest.weights) == len(shards) - 1 + len(norm)


def test_weight_values_outside_of_the_dtype_are_refused(tmp_path: Path) -> None:
    model = checkpoints.make("llama", tmp_path / "m", dtype=torch.bfloat16)
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][0] = 1e5
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.norm\.weight has values that F16 cannot hold"):
        build(model, tmp_path / "b", L_max=32, dtype="fp16")


@pytest.mark.parametrize(("age", "trusted"), [(-10, True), (10, False)])
def test_downloaded_hash_is_trusted_only_for_an_unmodified_file(
    tmp_path: Path, age: float, trusted: bool
) -> None:
    model = checkpoints.make("llama", tmp_path / "m")
    metadata = model / ".cache/huggingface/download/model.safetensors.metadata"
    metadata.parent.mkdir(parents=True)
    written = (model / "model.safetensors").stat().st_mtime
    metadata.write_text(f"{'0' * 40}\n{'cd' * 32}\n{written - age}\n")
    (weights,) = build(model, tmp_path / "b", L_max=32, link_weights=True).manifest.weights
    assert (weights.sha256 == "cd" * 32) is trusted


def test_hub_download_takes_what_a_build_copies_and_no_duplicate_weights(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = []

    def snapshot_download(model: str, **given: Any) -> str:
        downloads.append(given | {"model": model})
        return str(checkpoint)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    build("owner/name", tmp_path / "b", L_max=32)
    assert {one["model"] for one in downloads} == {"owner/name"}
    assert downloads[2]["revision"] == checkpoint.name
    wanted = [*READ, "tokenizer.model", "tekken.json", SHARD_INDEX, "model-00001-of-2.safetensors"]
    others = ["consolidated.safetensors", "original/params.json", "pytorch_model.bin", "a.gguf"]
    others += ["onnx/model.onnx", "vae/model.safetensors", "modeling_x.py", "README.md"]
    fetched = set()
    for one in downloads:
        patterns = {name: one.get(name) for name in ("allow_patterns", "ignore_patterns")}
        fetched |= set(filter_repo_objects([*wanted, *others], **patterns))
    assert fetched == set(wanted) > set(COPIED)


def test_verify_weights_finds_a_changed_byte(checkpoint: Path, tmp_path: Path) -> None:
    made = build(checkpoint, tmp_path / "b", L_max=32)
    with (made.directory / "weights/model.norm.weight.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    with pytest.raises(UserError, match=r"model\.norm\.weight\.safetensors was changed"):
        made.verify_weights()
