"""Helpers of the engine tests: a build's engines, recorded calls of the fake, a slow process."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from snapexport.builder.engines import EngineOptions, build_engines
from snapexport.contract.build_directory import Build
from snapexport.contract.engines import EngineEntry
from snapexport.errors import UserError
from tests.patience import until

GRAPHS = {"prefill", "compress", "decode", "baseline-prefill", "baseline-decode"}
NAME = "sm_90-nvidia_fake"


def entry_of(own_build: Build, name: str = NAME) -> EngineEntry:
    return Build.open(own_build.directory).manifest.engines[name]


def files(own_build: Build) -> set[str]:
    engines = own_build.directory / "engines"
    return {str(path.relative_to(engines)) for path in engines.rglob("*") if path.is_file()}


def calls_to(fake_tensorrt: Any, call: str) -> list[Any]:
    return [value for name, value in fake_tensorrt.calls if name == call]


def rebuild(own_build: Build, **options: Any) -> str:
    """Build engines beside those, or in place of those, that the directory has now."""
    return build_engines(Build.open(own_build.directory), EngineOptions(**options))


def refusal(own_build: Build, **options: Any) -> str:
    with pytest.raises(UserError) as refused:
        rebuild(own_build, **options)
    return str(refused.value)


def start(own_build: Build) -> "subprocess.Popen[str]":
    """A process whose first engine is under way."""
    slow = json.dumps({"steps": 100_000, "step_seconds": 0.01})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.process", slow, "engine", str(own_build.directory)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
    )
    engines = own_build.directory / "engines"
    until(lambda: process.poll() is not None or bool(list(engines.rglob("*.partial"))))
    if process.poll() is not None:
        raise AssertionError(process.communicate())
    return process
