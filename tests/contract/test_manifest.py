"""Builds that were changed or written by another version are refused."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import MANIFEST, Manifest
from snapexport.errors import UserError

Fields = dict[str, Any]

LM_HEAD = "weights/lm_head.weight.safetensors"


@pytest.fixture
def build_copy(tiny_build: Build, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_build.directory, tmp_path / "copy"))


def rewrite(directory: Path, change: Callable[[Fields], None]) -> None:
    fields = json.loads((directory / MANIFEST).read_text())
    change(fields)
    (directory / MANIFEST).write_text(json.dumps(fields))


def test_manifest_read_from_disk_equals_the_one_in_memory(tiny_build: Build) -> None:
    assert Manifest.read(tiny_build.directory) == tiny_build.manifest


def test_manifest_digest_has_the_format_of_sha256sum(tiny_build: Build) -> None:
    digest, name = (tiny_build.directory / f"{MANIFEST}.sha256").read_text().split()
    assert (len(digest), name) == (64, MANIFEST)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["geometry"].update(pool_kernel=9),
        lambda m: m["model"].update(eos_token_id=[7]),
    ],
)
def test_a_changed_manifest_is_refused_by_its_digest(
    build_copy: Path, change: Callable[[Fields], None]
) -> None:
    rewrite(build_copy, change)
    with pytest.raises(UserError, match="was changed after the build"):
        Build.open(build_copy)


@pytest.mark.parametrize("name", ["prefill", "compress", "decode", "baseline-decode"])
def test_a_changed_byte_of_a_graph_is_refused(build_copy: Path, name: str) -> None:
    with (build_copy / f"{name}.onnx").open("r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(UserError, match="was changed"):
        Build.open(build_copy)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / MANIFEST).unlink(), "is not a build directory"),
        (lambda d: (d / MANIFEST).write_text("{"), "is not JSON"),
        (lambda d: (d / MANIFEST).write_text("[]"), "does not hold a JSON object"),
        (lambda d: (d / f"{MANIFEST}.sha256").unlink(), "is missing"),
        (lambda d: (d / "decode.onnx").unlink(), "is missing"),
        (lambda d: os.truncate(d / LM_HEAD, 40), "has 40 bytes, the manifest says"),
        (lambda d: (d / LM_HEAD).open("ab").write(b"x"), "bytes, the manifest says"),
    ],
)
def test_missing_and_damaged_files_of_a_build_are_refused(
    build_copy: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(build_copy)
    with pytest.raises(UserError) as error:
        Build.open(build_copy)
    assert message in error.value.message


def test_symbolic_link_in_place_of_a_weight_file_is_refused(build_copy: Path) -> None:
    weights = build_copy / "weights/lm_head.weight.safetensors"
    weights.rename(build_copy / "elsewhere")
    weights.symlink_to(build_copy / "elsewhere")
    with pytest.raises(UserError, match="is a symbolic link"):
        Build.open(build_copy)


def test_kill_between_manifest_and_digest_leaves_a_readable_manifest(
    build_copy: Path, tiny_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.replace
    changed = tiny_build.manifest.model_copy(update={"batch": 7})
    for writes in range(4):  # each of the three renames fails once, and then none
        left = iter([True] * writes)

        def replace(source: Path, target: Path, left: Iterator[bool] = left) -> None:
            if next(left, False):
                rename(source, target)
            else:
                raise OSError("killed")

        monkeypatch.setattr(Path, "replace", replace)
        with pytest.raises(OSError, match="killed") if writes < 3 else nullcontext():
            changed.write(build_copy)
        assert Manifest.read(build_copy).batch in (tiny_build.manifest.batch, 7)
    assert Manifest.read(build_copy).batch == 7
    assert len((build_copy / f"{MANIFEST}.sha256").read_text().splitlines()) == 1
