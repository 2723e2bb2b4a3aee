"""A build in the Hub's cache, whose files are links to blobs, runs; other links are refused."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir
from huggingface_hub.file_download import _create_symlink

from snapexport.builder.verify import verify
from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import DIGEST, MANIFEST, WEIGHTS
from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM

NORM = f"{WEIGHTS}/model.norm.weight.safetensors"


def cached(build: Path, cache: Path, below: str) -> Path:
    """The build in a repository of the cache, in its folder `below`, by the Hub's own functions."""
    repository = cache / "models--owner--name"
    snapshot = repository / "snapshots" / ("c" * 40)
    for file in (path for path in build.rglob("*") if path.is_file()):
        hashes = hashlib.sha256 if file.suffix in (".onnx", ".safetensors") else hashlib.sha1
        blob = repository / "blobs" / hashes(file.read_bytes()).hexdigest()
        link = snapshot / below / file.relative_to(build)
        for folder in (blob.parent, link.parent):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, blob)
        _create_symlink(str(blob), str(link))
    return snapshot / below


@pytest.mark.parametrize("below", ["", "fp32/build"])
def test_build_in_the_cache_of_the_hub_runs(
    tiny_build: Build, below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = cached(tiny_build.directory, tmp_path, below)
    (repository,) = scan_cache_dir(tmp_path).repos
    assert repository.nb_files > len(tiny_build.manifest.weights)
    (tmp_path / "name").symlink_to(build)
    scores = []
    for directory in (tiny_build.directory, build, tmp_path / "name"):
        llm = LLM(directory)
        scores.append(llm.score([[3, 4, 5]], [[6, 7]])[0].logprobs)
        llm.close()
    assert scores[0] == scores[1] == scores[2]
    assert verify(Build.open(build)).compared_graphs
    for command in ("inspect", "lint"):
        assert main([command, str(build)]) == 0
        capsys.readouterr()


def test_a_build_whose_blob_is_not_downloaded_is_refused(tiny_build: Build, tmp_path: Path) -> None:
    build = cached(tiny_build.directory, tmp_path, "")
    (build / NORM).resolve().unlink()
    with pytest.raises(UserError, match="is missing") as error:
        Build.open(build)
    assert error.value.hint == "download the build again"


def to(place: str) -> Callable[[Path], None]:
    def make(link: Path) -> None:
        content = link.read_bytes()
        link.unlink()
        target = next(one for one in link.parents if one.name.startswith("models--")) / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        link.symlink_to(os.path.relpath(target, link.parent))

    return make


def to_a_link(link: Path) -> None:
    blob = link.resolve()
    blob.rename(blob.parents[2] / "elsewhere")
    blob.symlink_to(blob.parents[2] / "elsewhere")


@pytest.mark.parametrize("file", [MANIFEST, DIGEST, "decode.onnx", NORM])
@pytest.mark.parametrize(
    "make",
    [
        to("blobs/model.safetensors"),
        to(f"refs/{'a' * 40}"),
        to(f"../models--other--name/blobs/{'a' * 40}"),
        to(f"blobs/more/{'a' * 40}"),
        to_a_link,
    ],
)
def test_other_links_are_refused_in_the_cache_too(
    tiny_build: Build, file: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    build = cached(tiny_build.directory, tmp_path, "")
    make(build / file)
    with pytest.raises(UserError, match=r"is a symbolic link|not a regular file") as error:
        Build.open(build)
    assert "cp -rL" in error.value.hint
