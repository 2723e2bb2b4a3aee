"""Writes a model repository: a build, two models around it, a README and a Dockerfile.

NAME/config.pbtxt          NAME_unary/config.pbtxt
NAME/1/model.py            NAME_unary/1/model.py
NAME/1/build -> the build directory, or a copy of it
NAME/warmup/               README.md  Dockerfile  repository.json
"""

import importlib.resources
import json
import shutil
from pathlib import Path
from string import Template

import snapexport
from snapexport.builder.staging import staged
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import Manifest
from snapexport.contract.memory import cache_bytes, spelled
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError, needs_extra
from snapexport.files.copying import copy_file
from snapexport.runtime.requests.scheduler import Scheduler
from snapexport.serving.options import RepositoryOptions
from snapexport.serving.triton.interface import BUILD, MODEL_FILE, VERSION, Device

RECORD = "repository.json"
"""Record of what was written, from which build. --overwrite replaces only directories with it."""

FILES = importlib.resources.files("snapexport.serving.triton") / "files"


def write_repository(options: RepositoryOptions) -> Path:
    """Write `options.out` atomically. Raises UserError."""
    with needs_extra("triton"):
        from snapexport.serving.triton import model_config
    build = Build.open(options.build)
    device = _device(options, build.manifest)
    build.require_run(command="triton", placed_on=device, threads=options.threads)
    Scheduler(build.manifest.batch, build.manifest.prefill_chunk, options.max_num_batched_tokens)
    _require_outside(options)
    with staged(options.out, options.overwrite, RECORD, "a model repository") as out:
        streaming = out / options.model_name
        longest = build.manifest.geometry.longest_prompt
        warmup_tokens = min(build.manifest.prefill_chunk + 1, longest)
        config = model_config.streaming(
            options.model_name, device, _parameters(options), warmup_tokens
        )
        _write_model(streaming, config, "model.py")
        _place_build(build.directory, streaming / VERSION / BUILD, options.copy)
        _write_warmup(streaming / model_config.WARMUP, model_config.WARMUP_FILES)
        # The unary model may forward as many requests as fit.
        room = build.manifest.batch + options.max_pending
        parameters = {"model": options.model_name, "max_requests": str(room)}
        config = model_config.unary(options.unary_name, parameters)
        _write_model(out / options.unary_name, config, "unary_model.py")
        _write_template(out, "README.md", _readme_values(options, build.manifest, device))
        _write_template(out, "Dockerfile", _dockerfile_values(build.manifest))
        _write_record(out, options)
    return options.out


def _device(options: RepositoryOptions, manifest: Manifest) -> Device:
    if options.device:
        return options.device
    return "gpu" if capabilities(manifest.target).compiled and manifest.engines else "cpu"


def _require_outside(options: RepositoryOptions) -> None:
    """Raise UserError for --out inside the build: the copy would contain itself."""
    if options.out.resolve().is_relative_to(options.build.resolve()):
        raise UserError(
            f"--out {options.out} is inside the build {options.build}",
            "choose a directory outside of it",
        )


def _parameters(options: RepositoryOptions) -> dict[str, str]:
    given = {
        "build": BUILD,
        "max_pending": options.max_pending,
        "threads": options.threads,
        "token_budget": options.max_num_batched_tokens,
    }
    return {key: str(value) for key, value in given.items() if value is not None}


def _write_model(directory: Path, config: str, file: str) -> None:
    (directory / VERSION).mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)
    (directory / VERSION / MODEL_FILE).write_text((FILES / file).read_text())


def _write_warmup(directory: Path, files: dict[str, bytes]) -> None:
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)


def _readme_values(
    options: RepositoryOptions, manifest: Manifest, device: Device
) -> dict[str, str]:
    cache = cache_bytes(manifest)
    return {
        "name": options.model_name,
        "unary": options.unary_name,
        "version": snapexport.__version__,
        "architecture": manifest.model.architecture,
        "target": manifest.target,
        "dtype": manifest.dtype,
        "longest_prompt": str(manifest.geometry.longest_prompt),
        "slots": str(manifest.batch),
        "cache": spelled(cache.decode),
        "full_cache": spelled(cache.full),
        "gpus": "--gpus all " if device == "gpu" else "",
    }


def _dockerfile_values(manifest: Manifest) -> dict[str, str]:
    """A plan runs on the TensorRT that built it."""
    versions = sorted({engine.version for engine in manifest.engines.values()})
    return {
        "requirement": "snapexport[cpu,tensorrt]" if versions else "snapexport[cpu]",
        "more": f" \\\n    tensorrt=={versions[-1]}" if versions else "",
    }


def _write_template(out: Path, name: str, values: dict[str, str]) -> None:
    text = Template((FILES / name).read_text()).substitute(values)
    (out / name).write_text(text)


def _write_record(out: Path, options: RepositoryOptions) -> None:
    record = {
        "written_by": f"snapexport {snapexport.__version__}",
        "models": [options.model_name, options.unary_name],
        "build": str(options.build.resolve()),
        "is_copy": options.copy,
    }
    (out / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def _place_build(build: Path, place: Path, copy: bool) -> None:
    if copy:
        _require_plain(build)
        # By reflink where the file system can.
        shutil.copytree(build, place, copy_function=lambda one, to: copy_file(Path(one), Path(to)))
    else:
        place.symlink_to(build.resolve(), target_is_directory=True)


def _require_plain(build: Path) -> None:
    """Raise UserError for what would be copied without end, or from elsewhere."""
    for path in build.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} is neither a file nor a folder", "remove it from the build")
