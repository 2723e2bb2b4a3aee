"""The backend's settings, read from config.pbtxt."""

import json
from pathlib import Path

import pytest

from snapexport.errors import UserError
from snapexport.serving.triton.settings import backend_of, read_options


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
    assert backend_of(args(kind)) == backend


def test_parameters_become_options_and_tritons_own_are_left_out() -> None:
    options = read_options(args(max_pending="0", token_budget="9", EXECUTION_ENV_PATH="/env"))
    assert options.build == Path("/models/m/1/build")
    assert (options.max_pending, options.max_num_batched_tokens) == (0, 9)
    assert options.threads is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (args(), "max_pending '': Field required"),
        (args(max_pending="some"), "max_pending 'some': Input should be a valid integer"),
        (args(max_pending="1", backend="tensorrt"), "backend 'tensorrt': Extra inputs"),
        (args("MODEL", max_pending="1"), "instances of kind MODEL are not supported"),
    ],
)
def test_settings_refuse_wrong_parameters_and_kinds(given: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_options(given)
        backend_of(given)
