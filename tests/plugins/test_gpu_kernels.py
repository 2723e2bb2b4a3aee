"""The check of kernels on a GPU, on the emulated ones: it passes right results and finds wrong."""

import sys
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch

from snapexport.plugins import reference

SCRIPT = Path(__file__).parents[2] / "tools" / "studies" / "gpu_kernels.py"


@pytest.fixture(scope="module")
def study() -> SimpleNamespace:
    return SimpleNamespace(**run_path(str(SCRIPT), run_name="gpu_kernels"))


@pytest.mark.parametrize("index", [0, 5, 11, 12])
def test_gpu_check_passes_the_emulated_kernels(
    study: SimpleNamespace, emulated_library: Path, index: int
) -> None:
    machine = study.Machine(emulated_library, "cpu")
    assert study.check(machine, study.SMALL[index]) == ""


def test_kernels_accept_every_large_case_of_gpu_check(
    study: SimpleNamespace, emulated_library: Path
) -> None:
    launchers = study.Machine(emulated_library, "cpu").launchers
    for case in study.LARGE:
        assert launchers.select_refusal(case.select, case.dtype) == ""
        assert launchers.gather_refusal(case.gather, case.dtype) == ""
    assert max(case.T for case in study.LARGE) == 131072


def test_gpu_check_finds_wrong_positions(study: SimpleNamespace, emulated_library: Path) -> None:
    case = study.SMALL[4]
    data = study.Data.fresh(study.Machine(emulated_library, "cpu"), case)
    data.select()
    right = data.positions.clone()
    assert study.wrong_positions(data) == ""
    scores = reference.scores(case.select, data.query, data.key, case.prompt)
    worst = int(scores[0].argmin()) + case.sink
    for wrong, complaint in [
        (torch.cat([right[:, 1:], right[:, :1]], 1), "do not ascend"),
        (right - case.T, "not eligible"),
        (right.where(right != right[0, 0], worst).sort(1).values, "kept"),
    ]:
        data.positions.copy_(wrong)
        assert complaint in study.wrong_positions(data)


def test_gpu_check_without_a_gpu_ends_with_a_hint(
    study: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setattr(sys, "argv", ["gpu_kernels.py"])
    with pytest.raises(SystemExit, match="hint: --dry-run"):
        study.main()
