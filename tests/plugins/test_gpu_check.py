"""tools/gpu_check.py on the emulated kernels: it passes right results and finds wrong ones."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from snapexport.plugins import reference

SCRIPT = Path(__file__).parents[2] / "tools" / "gpu_check.py"


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("index", [0, 5, 11, 12])
def test_gpu_check_passes_the_emulated_kernels(
    gpu_check: ModuleType, emulated_library: Path, index: int
) -> None:
    machine = gpu_check.Machine(emulated_library, "cpu")
    assert gpu_check.check(machine, gpu_check.SMALL[index]) == ""


def test_kernels_accept_every_large_case_of_gpu_check(
    gpu_check: ModuleType, emulated_library: Path
) -> None:
    launchers = gpu_check.Machine(emulated_library, "cpu").launchers
    for case in gpu_check.LARGE:
        assert launchers.select_refusal(case.select, case.dtype) == ""
        assert launchers.gather_refusal(case.gather, case.dtype) == ""
    assert max(case.T for case in gpu_check.LARGE) == 131072


def test_gpu_check_finds_wrong_positions(gpu_check: ModuleType, emulated_library: Path) -> None:
    case = gpu_check.SMALL[4]
    data = gpu_check.Data.fresh(gpu_check.Machine(emulated_library, "cpu"), case)
    data.select()
    right = data.positions.clone()
    assert gpu_check.wrong_positions(data) == ""
    scores = reference.scores(case.select, data.query, data.key, case.prompt)
    worst = int(scores[0].argmin()) + case.sink
    for wrong, complaint in [
        (torch.cat([right[:, 1:], right[:, :1]], 1), "do not ascend"),
        (right - case.T, "not eligible"),
        (right.where(right != right[0, 0], worst).sort(1).values, "kept"),
    ]:
        data.positions.copy_(wrong)
        assert complaint in gpu_check.wrong_positions(data)


def test_gpu_check_without_a_gpu_ends_with_a_hint(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    with pytest.raises(SystemExit, match="hint: --dry-run"):
        gpu_check.main()
