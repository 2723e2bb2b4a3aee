"""The builds and plans that the tests of evaluation share. A build is made once, and only read."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from snapexport.contract.build_directory import Build
from snapexport.measure.eval.grid import Grid, make_grid
from snapexport.measure.eval.run import Evaluation
from snapexport.measure.options import EvalOptions
from snapexport.vault import CHECKPOINT
from tests.builds import build
from tests.oracle import checkpoints

FEW: dict[str, Any] = {"tasks": ("vault",), "samples": 1, "threads": 1, "hit_samples": 0}


@cache
def vault() -> Build:
    """The bundled checkpoint in 64 cache slots: 4 sinks, a ring of 30, 30 for the vote.

    An answer is four tokens long: so few slots want a short pool.

    Alone in its directory.
    """
    options: dict[str, Any] = {"kv_budget": 64, "pool_kernel": 7, "prefill_chunk": 128}
    return build(
        CHECKPOINT, _directory() / "vault.build", L_max=600, batch=1, baseline=True, **options
    )


@cache
def sliding() -> Build:
    """A random model that spells the vault; only the second of its three layers sees all.

    Its checkpoint lies beside, as "model".
    """
    directory = _directory()
    words = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")).get_vocab_size()
    model = checkpoints.make("qwen3-sliding", directory / "model", vocab_size=words)
    shutil.copyfile(CHECKPOINT / "tokenizer.json", model / "tokenizer.json")
    options: dict[str, Any] = {"L_recent": 24, "K": 16, "L_obs": 6, "prefill_chunk": 64}
    return build(model, directory / "sliding.build", L_max=200, batch=2, baseline=True, **options)


def vault_grid(of: Build, **choices: Any) -> Grid:
    """A few questions of the vault; `choices` are EvalOptions' fields."""
    return make_grid(of, EvalOptions(**FEW | choices))


def documents_grid(of: Build, folder: Path, **choices: Any) -> Grid:
    """Prompts of 100 and 200 tokens from the documents of a folder."""
    options = {"tasks": None, "documents": (folder,), "lengths": (100, 200), "budgets": (64,)}
    policies = ("full", "snapstream", "streaming")
    return vault_grid(of, policies=policies, **options | choices)


def report_of(grid: Grid, out: Path | None = None) -> dict[str, Any]:
    """Run a whole grid, and return its report."""
    evaluation = Evaluation(grid, out)
    list(evaluation.run())
    return evaluation.report()


def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="snapexport-evaluation-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
