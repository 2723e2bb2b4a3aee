"""`snapexport triton`: the repository that it writes, its checks, and commands of its README.md."""

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

from snapexport.cli import app, triton
from snapexport.contract.engines import EngineEntry
from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.serving.triton import checks, repository
from snapexport.serving.triton.options import RepositoryOptions
from snapexport.serving.triton.repository import write_repository
from snapexport.serving.triton.server import Server
from tests.serving.triton.client import Client

Plant = Callable[[Path], None]


@pytest.fixture
def triton_command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setitem(app.COMMANDS, "triton", triton)
    return lambda *arguments: app.main(["triton", *map(str, arguments)])


@pytest.fixture
def repository_copy(repository: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repository, tmp_path / "written", symlinks=True))


def config_of(model: Path) -> schema.ModelConfig:
    return text_format.Parse((model / "config.pbtxt").read_text(), schema.ModelConfig())


def edit(file: str, old: str, new: str) -> Plant:
    """Replace something in a file of the repository, once."""

    def plant(repository: Path) -> None:
        text = (repository / file).read_text()
        assert old in text, f"nothing to plant in {file}"
        (repository / file).write_text(text.replace(old, new, 1))

    return plant


def remove(file: str) -> Plant:
    return lambda repository: (repository / file).unlink()


def without(field: str) -> Plant:
    """Take a field out of the streaming model's config."""

    def plant(repository: Path) -> None:
        config = config_of(repository / "vault")
        config.ClearField(field)
        (repository / CONFIG).write_text(text_format.MessageToString(config))

    return plant


def without_parameter(name: str) -> Plant:
    def plant(repository: Path) -> None:
        config = config_of(repository / "vault")
        del config.parameters[name]
        (repository / CONFIG).write_text(text_format.MessageToString(config))

    return plant


CONFIG, UNARY = "vault/config.pbtxt", "vault_unary/config.pbtxt"
FAULTS: dict[str, tuple[Plant, str]] = {
    "another name": (edit(CONFIG, 'name: "vault"', 'name: "volt"'), "name is volt, not vault"),
    "a word that Triton does not know": (edit(CONFIG, "backend:", "bakkend:"), "cannot be read"),
    "another backend": (
        edit(CONFIG, '"python"', '"onnxruntime"'),
        "backend is onnxruntime, not python",
    ),
    "no config": (remove(CONFIG), "config.pbtxt is missing"),
    "no model.py": (remove("vault/1/model.py"), "1/model.py is missing"),
    "model.py that is no Python": (edit("vault/1/model.py", "import", "imp ort"), "is no Python"),
    "model.py without TritonPythonModel": (
        edit("vault/1/model.py", "as TritonPythonModel", "as Model"),
        "defines no TritonPythonModel",
    ),
    "no batch dimension": (
        edit(CONFIG, "max_batch_size: 1", "max_batch_size: 0"),
        "max_batch_size is missing",
    ),
    "a misspelt input": (edit(CONFIG, '"max_tokens"', '"max_token"'), "input 'max_tokens' is miss"),
    "an unknown input": (
        edit(CONFIG, '"max_tokens"', '"best_of"'),
        "input 'best_of' is none that the model is served with",
    ),
    "an input twice": (edit(CONFIG, '"top_p"', '"top_k"'), "a second input 'top_k' is none"),
    "another type": (
        edit(CONFIG, "TYPE_UINT64", "TYPE_INT64"),
        "input 'seed' is {'name': 'seed', 'data_type': 'TYPE_INT64', 'dims': ['1'],",
    ),
    "another shape": (edit(CONFIG, "dims: -1", "dims: 4"), "'dims': ['-1']"),
    "an input that is required": (
        edit(CONFIG, "optional: true", ""),
        "not {'name': 'text_input', 'data_type': 'TYPE_STRING', 'dims': ['1'], 'optional': True}",
    ),
    "an output that is missing": (
        edit(CONFIG, '"finish_reason"', '"reason"'),
        "output 'finish_reason' is missing",
    ),
    "not decoupled": (
        edit(CONFIG, "decoupled: true", ""),
        "a model that streams has to be decoupled",
    ),
    "an unknown parameter": (
        edit(CONFIG, '"max_pending"', '"max_queue"'),
        "parameter max_queue '64': Extra inputs are not permitted",
    ),
    "a warm-up without its file": (remove("vault/warmup/max_tokens"), "warmup/max_tokens is miss"),
    "a warm-up of an unknown input": (
        edit(CONFIG, 'key: "ignore_eos"', 'key: "ignore"'),
        "warm-up input 'ignore'",
    ),
    "a field that changes what Triton does": (
        edit(CONFIG, "max_batch_size: 1", "max_batch_size: 1\ndynamic_batching { }"),
        "dynamic_batching is none",
    ),
    "another name of model.py": (
        edit(CONFIG, "max_batch_size: 1", 'max_batch_size: 1\ndefault_model_filename: "m.py"'),
        "default_model_filename is none",
    ),
    "another version": (
        lambda repository: (repository / "vault/2").mkdir(),
        "2 is another version",
    ),
    "no bound of the queue": (
        without_parameter("max_pending"),
        "parameter max_pending '': Field required",
    ),
    "a bound that is no number": (
        edit(CONFIG, 'string_value: "64"', 'string_value: "some"'),
        "parameter max_pending 'some': Input should be a valid integer",
    ),
    "no threads": (
        edit(CONFIG, 'string_value: "1"', 'string_value: "0"'),
        "parameter threads '0': Input should be greater",
    ),
    "two instances": (edit(CONFIG, "count: 1", "count: 2"), "instance_group is {'count': 2"),
    "two groups": (
        edit(
            CONFIG,
            "instance_group {",
            "instance_group { count: 1 kind: KIND_CPU }\ninstance_group {",
        ),
        "a second instance_group is none",
    ),
    "an instance without an engine": (
        edit(CONFIG, "kind: KIND_CPU", "kind: KIND_GPU gpus: 0"),
        "KIND_GPU needs TensorRT engines",
    ),
    "an instance of another kind": (
        edit(CONFIG, "KIND_CPU", "KIND_MODEL"),
        "instance_group is {'count': 1, 'kind': 'KIND_MODEL'}",
    ),
    "a unary model on a GPU": (edit(UNARY, "KIND_CPU", "KIND_GPU"), "vault_unary: instance_group"),
    "a unary model that calls itself": (
        edit(UNARY, 'string_value: "vault"', 'string_value: "vault_unary"'),
        "it asks 'vault_unary', which is no streaming model",
    ),
    "no instances": (without("instance_group"), "instance_group is missing"),
    "no warm-up": (without("model_warmup"), "there is no model_warmup"),
    "no build": (remove("vault/1/build"), "the build cannot be opened"),
    "a unary model without its streaming model": (
        edit(UNARY, 'string_value: "vault"', 'string_value: "x"'),
        "it asks 'x'",
    ),
    "no model.py of the unary model": (
        remove("vault_unary/1/model.py"),
        "vault_unary: 1/model.py is missing",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_refuses_a_planted_fault_of_the_repository(
    repository_copy: Path,
    fault: str,
    triton_command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant, message = FAULTS[fault]
    assert triton_command("--check", repository_copy) == 0
    plant(repository_copy)
    assert triton_command("--check", repository_copy) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and "\n\nhint: " in error


def test_check_accepts_parameters_of_tritons_python_backend(repository_copy: Path) -> None:
    for name in ("vault", "vault_unary"):
        config = config_of(repository_copy / name)
        config.parameters["EXECUTION_ENV_PATH"].string_value = "/opt/env.tar.gz"
        config.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value = "yes"
        (repository_copy / name / "config.pbtxt").write_text(text_format.MessageToString(config))
    assert list(checks.faults(repository_copy)) == []


def test_repository_inside_its_build_is_refused(build: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(build, tmp_path / "copy.build"))
    before = sorted(copy.rglob("*"))
    with pytest.raises(UserError, match="inside the build"):
        write_repository(RepositoryOptions(copy, copy / "repository", copy=True))
    assert sorted(copy.rglob("*")) == before


def test_repository_that_fails_its_check_is_not_written(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "_write_warmup", lambda directory, files: None)
    with pytest.raises(UserError, match="warmup/max_tokens is missing"):
        write_repository(RepositoryOptions(build, tmp_path / "repository"))
    assert not list(tmp_path.iterdir())


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
        (["BUILD"], "BUILD and --out are needed"),
        (["--out", "OUT"], "BUILD and --out are needed"),
        (["BUILD", "--out", "OUT", "--name", "a b"], "'a b' cannot be a model's name"),
        (["BUILD", "--out", "OUT", "--name", "../a"], "'../a' cannot be"),
        (["BUILD", "--out", "OUT", "--max-pending", "-1"], "--max-pending -1 is too small"),
        (["BUILD", "--out", "OUT", "--threads", "0"], "--threads 0 is too small"),
        (["BUILD", "--out", "OUT", "--token-budget", "8"], "8 tokens a step"),
        (["BUILD", "--out", "OUT", "--device", "gpu"], "no TensorRT engines"),
        (["OUT", "--out", "OUT"], "is not a build directory"),
        (["--check", "OUT"], "is not a directory"),
        (["BUILD", "--check", "OUT"], "--check goes without BUILD"),
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


def engine(tensorrt: str) -> EngineEntry:
    return EngineEntry(
        version=tensorrt,
        compute_capabilities=["9.0"],
        gpu="H200",
        hardware_compatibility="none",
        version_compatible=False,
        stripped=False,
        plugins=None,
        graphs={},
    )


def test_repository_of_a_build_with_engines_runs_on_the_gpu(build: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(build, tmp_path / "engines.build"))
    manifest = Manifest.read(copy)
    engines = {"h200": engine("10.13.3")}
    manifest.model_copy(update={"target": "tensorrt", "engines": engines}).write(copy)
    out = write_repository(RepositoryOptions(copy, tmp_path / "repository"))
    (group,) = config_of(out / "engines").instance_group
    assert (group.kind, list(group.gpus)) == (schema.ModelInstanceGroup.KIND_GPU, [0])
    assert "tensorrt==10.13.3" in (out / "Dockerfile").read_text()
    assert "--gpus all " in (out / "README.md").read_text()
    with pytest.raises(UserError, match="--threads 2 is for the CPU"):
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
        ask, example = re.findall(r"```(?:python)?\n(.*?)```", readme, re.DOTALL)[2:4]
        for line in re.split(r"\n(?=curl)", textwrap.dedent(ask).strip()):
            answer = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60)
            assert answer.returncode == 0 and "text_output" in answer.stdout, line
        python = subprocess.run(
            [*_python(), example], capture_output=True, text=True, timeout=60, env=dict(os.environ)
        )
        assert python.returncode == 0 and python.stdout.strip(), python.stderr


def _python() -> list[str]:
    import sys

    return [sys.executable, "-c"]


def test_check_finds_nothing_in_a_sound_repository(repository: Path) -> None:
    assert list(checks.faults(repository)) == []
