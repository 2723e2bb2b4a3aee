"""`snapexport dynamo`: flags, and what is missing."""

from pathlib import Path

import pytest

from snapexport.cli.app import main
from snapexport.serving.options import WorkerOptions
from tests.serving.dynamo.needed import IS_INSTALLED


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["x.build", "--lease-seconds", "0"], "--lease-seconds 0.0 cannot be used"),
        (["x.build", "--namespace", "a b"], "'a b' cannot be Dynamo's namespace"),
        (["x.build", "--component", "a.b"], "'a.b' cannot be Dynamo's component"),
        (["x.build", "--chat-template", "none.jinja"], "none.jinja is not a file"),
        (["up", "x.build", "--decode", "0"], "--decode 0 is below 1"),
        (["up", "x.build", "--port", "70000"], "--port 70000 cannot be used"),
        (["x.build", "--decode", "2"], "a cluster's --decode is not supported for a single worker"),
        (
            ["up", "x.build", "--role", "prefill"],
            "a worker's --role is not supported by `snapexport dynamo up`",
        ),
        (["down", "x.build"], "'down' is not a command"),
    ],
)
def test_bad_flags_are_refused(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dynamo", *words]) == 2
    assert f"error: {error}" in capsys.readouterr().err


def test_component_is_named_as_dynamos_own_workers() -> None:
    names = {
        role: WorkerOptions(build=Path("x"), role=role).component_name
        for role in ("both", "prefill", "decode")
    }
    assert names == {"both": "backend", "prefill": "prefill", "decode": "backend"}


@pytest.mark.skipif(IS_INSTALLED, reason="Dynamo is here")
@pytest.mark.parametrize("words", [["x.build"], ["up", "x.build"]])
def test_missing_packages_are_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dynamo", *words]) == 2
    error = capsys.readouterr().err
    assert "is not installed\n\nhint: pip install 'snapexport[cpu,dynamo]' && pip install" in error
