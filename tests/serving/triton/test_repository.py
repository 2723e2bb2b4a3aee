"""`snapexport triton`: the repository that it writes, and the commands of its README.md."""

import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as schema

from snapexport.cli import app
from snapexport.contract.engines import EngineEntry
from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.serving.options import RepositoryOptions
from snapexport.serving.triton.repository import write_repository
from tests.serving.process import SECONDS
from tests.serving.triton.client import Client
from tests.serving.triton.server import Server


@pytest.fixture
def triton_command() -> Callable[..., int]:
    return lambda *arguments: app.main(["triton", *map(str, arguments)])


@pytest.fixture
def repository_copy(repository: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repository, tmp_path / "written", symlinks=True))


def config_of(model: Path) -> schema.ModelConfig:
    return text_format.Parse((model / "config.pbtxt").read_text(), schema.ModelConfig())


def test_repository_inside_its_build_is_refused(build: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(build, tmp_path / "copy.build"))
    before = sorted(copy.rglob("*"))
    with pytest.raises(UserError, match="inside the build"):
        write_repository(RepositoryOptions(copy, copy / "repository", copy=True))
    assert sorted(copy.rglob("*")) == before


def test_config_has_the_settings_of_streaming_and_unary_model(repository_copy: Path) -> None:
    config = config_of(repository_copy / "vault")
    assert config.model_transaction_policy.decoupled and config.max_batch_size == 1
    assert config.instance_group[0].kind == schema.ModelInstanceGroup.KIND_CPU
    assert config.parameters["max_pending"].string_value == "64"
    assert config.parameters["threads"].string_value == "1"
    unary = config_of(repository_copy / "vault_unary")
    assert not unary.model_transaction_policy.decoupled
    assert unary.parameters["max_requests"].string_value == "72"
    assert [one.name for one in unary.input] == [one.name for one in config.input]


def test_triton_command_writes_its_flags_and_overwrites_only_on_request(
    build: Path,
    tmp_path: Path,
    triton_command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "new" / "repository"
    flags = ["--name", "llama-8b", "--max-pending", 3, "--token-budget", 300]
    assert triton_command(build, "--out", out, *flags) == 0
    error = capsys.readouterr().out
    assert "llama-8b" in error and f"tritonserver --model-repository={out}" in error
    parameters = config_of(out / "llama-8b").parameters
    assert {key: one.string_value for key, one in parameters.items()} == {
        "build": "build", "max_pending": "3", "token_budget": "300",
    }  # fmt: skip
    assert (out / "llama-8b/1/build").resolve() == build.resolve()
    assert triton_command(build, "--out", out) == 2
    assert triton_command(build, "--out", out, "--overwrite") == 0
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [
        name := build.name.removesuffix(".build"), f"{name}_unary",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["BUILD"], "the following arguments are required: --out"),
        (["BUILD", "--out", "OUT", "--name", "a b"], "'a b' cannot be a model's name"),
        (["BUILD", "--out", "OUT", "--name", "../a"], "'../a' cannot be"),
        (["BUILD", "--out", "OUT", "--max-pending", "-1"], "--max-pending -1 is below 0"),
        (["BUILD", "--out", "OUT", "--threads", "0"], "--threads 0 is below 1"),
        (["BUILD", "--out", "OUT", "--token-budget", "8"], "8 tokens a step"),
        (["BUILD", "--out", "OUT", "--device", "gpu"], "not supported for a build without engines"),
        (["OUT", "--out", "OUT"], "is not a build directory"),
    ],
)
def test_triton_command_refuses_wrong_arguments(
    build: Path,
    tmp_path: Path,
    triton_command: Callable[..., int],
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"BUILD": str(build), "OUT": str(tmp_path / "out")}
    assert triton_command(*(places.get(one, one) for one in arguments)) == 2
    error = capsys.readouterr().err
    assert message in error and "\n\nhint: " in error
    assert not list(tmp_path.iterdir())


def test_triton_command_never_overwrites_a_build(
    build: Path,
    tmp_path: Path,
    triton_command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = Path(shutil.copytree(build, tmp_path / "copy.build"))
    for out in (copy, tmp_path):
        assert triton_command(copy, "--out", out, "--overwrite") == 2
        assert "--out" in capsys.readouterr().err
    assert Manifest.read(copy) == Manifest.read(build)


def test_repository_of_a_build_with_engines_runs_on_the_gpu(build: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(build, tmp_path / "engines.build"))
    manifest = Manifest.read(copy)
    of = {"version": "10.13.3", "compute_capabilities": ["9.0"], "gpu": "H200", "plugins": None}
    form = {"hardware_compatibility": "none", "version_compatible": False, "stripped": False}
    engines = {"h200": EngineEntry.model_validate(of | form | {"graphs": {}})}
    manifest.model_copy(update={"target": "tensorrt", "engines": engines}).write(copy)
    out = write_repository(RepositoryOptions(copy, tmp_path / "repository"))
    (group,) = config_of(out / "engines").instance_group
    assert (group.kind, list(group.gpus)) == (schema.ModelInstanceGroup.KIND_GPU, [0])
    assert "tensorrt==10.13.3" in (out / "Dockerfile").read_text()
    assert "--gpus all " in (out / "README.md").read_text()
    with pytest.raises(UserError, match="--threads 2 is not supported with --device gpu"):
        write_repository(RepositoryOptions(copy, tmp_path / "threads", threads=2))
    on_cpu = RepositoryOptions(copy, tmp_path / "cpu", device="cpu", threads=1)
    cpu = write_repository(on_cpu)
    (group,) = config_of(cpu / "engines").instance_group
    assert group.kind == schema.ModelInstanceGroup.KIND_CPU
    with Server(cpu) as server:  # not TensorRT, though the build has engines
        assert Client(server, "engines").generate(text_input="The", max_tokens=2).reason == "length"


def test_copied_repository_serves_after_a_move_as_its_readme_says(
    build: Path, tmp_path: Path
) -> None:
    options = RepositoryOptions(build, tmp_path / "repository", name="moved", copy=True)
    out = write_repository(options).rename(tmp_path / "elsewhere")
    assert not any(path.is_symlink() for path in out.rglob("*"))
    with Server(out) as server:
        assert Client(server, "moved").generate(text_input="The", max_tokens=2).reason == "length"
        http, port = server.http.removeprefix("http://"), server.grpc
        readme = (out / "README.md").read_text()
        readme = readme.replace("localhost:8000", http).replace("localhost:8001", port)
        ask, example, probe = re.findall(r"```(?:python)?\n(.*?)```", readme, re.DOTALL)[2:5]
        for line in re.split(r"\n(?=curl)", textwrap.dedent(ask + probe).strip()):
            answer = subprocess.run(
                line, shell=True, capture_output=True, text=True, timeout=SECONDS
            )
            assert answer.returncode == 0 and "text_output" in answer.stdout, line
        python = subprocess.run(
            [*_python(), example],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=dict(os.environ),
        )
        assert python.returncode == 0 and python.stdout.strip(), python.stderr


def _python() -> list[str]:
    import sys

    return [sys.executable, "-c"]
