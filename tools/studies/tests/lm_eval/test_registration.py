"""Registration of our model with the harness, which keeps its own models."""

import sys

import pytest
from lm_eval.api.registry import get_model

from tools.studies.lm_eval import register
from tools.studies.lm_eval.__main__ import main
from tools.studies.lm_eval.model import SnapexportLM


def test_a_missing_lm_eval_is_refused_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.api.registry", None)
    assert main() == 2
    assert capsys.readouterr().err.endswith("hint: pip install 'lm-eval>=0.4.13'\n")


def test_register_keeps_the_harness_own_models() -> None:
    register()
    register()
    assert get_model("snapexport") is SnapexportLM
    assert get_model("dummy").__module__ == "lm_eval.models.dummy"
