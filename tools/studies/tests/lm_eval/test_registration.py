"""Registration of our model with the harness, which keeps its own models."""

import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from lm_eval.api.registry import get_model

from tools.studies.lm_eval import register
from tools.studies.lm_eval.__main__ import main
from tools.studies.lm_eval.model import SnapexportLM


def test_snapexport_lm_eval_is_installed_as_a_script() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    target = project["project"]["scripts"]["snapexport-lm-eval"]
    assert EntryPoint("snapexport-lm-eval", target, "console_scripts").load() is main


def test_a_missing_lm_eval_is_refused_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.api.registry", None)
    assert main() == 2
    assert capsys.readouterr().err.endswith("hint: pip install 'snapexport[eval]'\n")


def test_register_keeps_the_harness_own_models() -> None:
    register()
    register()
    assert get_model("snapexport") is SnapexportLM
    assert get_model("dummy").__module__ == "lm_eval.models.dummy"
