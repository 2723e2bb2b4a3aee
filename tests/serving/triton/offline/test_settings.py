"""The backend's settings, read from config.pbtxt."""

import json
from pathlib import Path

import pytest

from snapexport.errors import UserError
from snapexport.serving.triton.backend.settings import Settings


def args(kind: str = "CPU", **parameters: str) -> dict[str, str]:
    given = {name: {"string_value": value} for name, value in parameters.items()}
    return {
        "model_config": json.dumps({"parameters": given}),
        "model_repository": "/models/m",
        "model_version": "1",
        "model_instance_kind": kind,
    }


@pytest.mark.parametrize(("kind", "backend"), [("CPU", "onnxruntime"), ("GPU", "tensorrt")])
def test_instance_kind_chooses_the_backend(kind: str, backend: str) -> None:
    settings = Settings.read(args(kind, max_pending="0", FORCE_CPU_ONLY_INPUT_TENSORS="yes"))
    assert settings == Settings(Path("/models/m/1/build"), 0, None, None, backend)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (args(), "max_pending '': Field required"),
        (args(max_pending="some"), "max_pending 'some': Input should be a valid integer"),
        (args(max_pending="1", backend="tensorrt"), "backend 'tensorrt': Extra inputs"),
        (args("MODEL", max_pending="1"), "no instance of kind MODEL"),
    ],
)
def test_settings_refuse_wrong_parameters_and_kinds(given: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Settings.read(given)
