"""An evaluation on each backend: what OpenVINO answers, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.measure.eval.estimate import estimate
from snapexport.measure.eval.grid import Grid, make_grid
from snapexport.measure.options import DEFAULT_MINUTES, EvalOptions
from snapexport.vault import CHECKPOINT
from snapexport.vault.prompts import ADJECTIVES, NOUNS, VERBS
from tests.builds import build
from tests.measure.eval.builds import report_of, vault_grid

POLICIES = "full", "snapstream", "snapstream:vote_queries=pseudo", "streaming"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[None, "int4"])
def portable_build(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Build:
    """The bundled checkpoint without operators of ONNX Runtime's own."""
    options: dict[str, Any] = {
        "kv_budget": 64,
        "pool_kernel": 7,
        "prefill_chunk": 128,
        "target": "openvino",
        "weights": request.param,
    }
    out = tmp_path_factory.mktemp("portable") / "b"
    return build(CHECKPOINT, out, L_max=600, batch=2, baseline=True, **options)


def rows_of(of: Build, folder: Path, backend: str) -> dict[str, Any]:
    pytest.importorskip(backend)
    options: dict[str, Any] = {"backend": backend, "hit_samples": 1, "modes": ("aware",)}
    options |= {"tasks": ("vault",), "policies": POLICIES, "continuation": 8}
    grid = vault_grid(of, documents=(folder,), lengths=(100, 200), budgets=(64,), **options)
    assert estimate(grid).seconds > 0
    report = report_of(grid)
    assert report["options"]["backend"] == backend
    return report


def test_openvino_gives_the_tables_of_onnx_runtime(portable_build: Build, tmp_path: Path) -> None:
    words = np.random.default_rng(0).choice([*ADJECTIVES, *NOUNS, *VERBS], 2000)
    (tmp_path / "text.txt").write_text(" ".join(words))
    want, found = (rows_of(portable_build, tmp_path, one) for one in ("onnxruntime", "openvino"))
    assert [row["score"] for row in found["results"]] == [row["score"] for row in want["results"]]
    for row, other in zip(found["continuations"], want["continuations"], strict=True):
        assert (row["system"], row["length"]) == (other["system"], other["length"])
        for column in ("nll", "kl", "agreement"):  # both round what integers are multiplied with
            most = 0.2 if portable_build.manifest.holds_integers else 2e-3
            assert row[column] == pytest.approx(other[column], abs=most)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a device of another backend": (
        {"device": "GPU", "threads": None},
        "--device GPU is not supported with another",
    ),
    "fp32 on a GPU": (
        {"backend": "onnxruntime-cuda", "threads": None, "hit_samples": 0},
        "not supported for a build with --target onnxruntime --dtype fp32",
    ),
    "operators of ONNX Runtime's own": (
        {"backend": "openvino"},
        "--backend openvino is not supported for a build with --target onnxruntime",
    ),
    "caches on a GPU": (
        {"backend": "onnxruntime-cuda", "threads": None, "hit_samples": 2},
        "--hit-samples 2 is not supported with --backend onnxruntime-cuda",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_backend_that_does_not_fit_is_refused_before_anything_runs(
    vault_build: Build, portable_build: Build, name: str
) -> None:
    choices, message = REFUSED[name]
    of = vault_build if "for a build with --target onnxruntime" in message else portable_build
    with pytest.raises(UserError, match=message):
        vault_grid(of, **choices)


def test_another_backend_is_another_evaluation_of_as_many_minutes(portable_build: Build) -> None:
    def grid(**choices: Any) -> Grid:
        return make_grid(portable_build, EvalOptions(**choices))

    plain, other, exact = (
        grid(),
        grid(backend="openvino"),
        grid(backend="openvino", precision="f32"),
    )
    assert len({one.fingerprint() for one in (plain, other, exact)}) == 3
    assert {one.seconds for one in (plain, other, exact)} == {60 * DEFAULT_MINUTES}
    assert grid(threads=1).fingerprint() == plain.fingerprint()
