"""Graphs of decoders that no record describes agree with transformers.

`make architectures` compares all, and notes by how much they differ. One stands for the rest in
the default run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Silent
from snapexport.builder.resolved import resolve
from snapexport.builder.selfcheck import verify
from tests.architectures.listed import HELD
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees, assert_agrees_with_plain
from tests.oracle.families import FAMILIES, few_by_default
from tests.oracle.hybrids import HYBRIDS
from tests.oracle.recurrent import require_agreement

torch.set_num_threads(1)


def _noted(record_property: Callable[[str, object], None], name: str, difference: float) -> None:
    record_property("type", next((kind for kind, held in HELD.items() if held == name), name))
    record_property("difference", difference)


@pytest.mark.architectures
@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrid_agrees_with_transformers(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    of_kept = require_agreement(Case(name, target="portable"), (70, 5, 33))
    of_full = require_agreement(Case(name, target="portable", policy="full"), (80, 32, 1))
    _noted(record_property, name, max(of_kept, of_full))


@pytest.mark.parametrize("name", few_by_default((*FAMILIES, *HELD.values())))
def test_family_agrees_with_transformers(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    case = Case(name, L_max=160, baseline=True, target="portable")
    of_kept = assert_agrees(case, (1, 25, 96))
    baseline = cases.built(case, "baseline-")
    of_full = assert_agrees_with_plain(baseline, name, (1, 65), f"{name} full cache")
    _noted(record_property, name, max(of_kept, of_full))


@pytest.mark.architectures
@pytest.mark.parametrize("name", (*FAMILIES, *HELD.values(), *HYBRIDS))
def test_its_build_compares_itself(name: str, tmp_path: Path) -> None:
    asked = {"model": str(cases.checkpoint(name)), "out": tmp_path / "build", "L_max": 160}
    verified = verify(resolve(BuildOptions.of(**asked, target="portable")), Silent())
    assert 0 < verified.largest_difference < 1e-3
