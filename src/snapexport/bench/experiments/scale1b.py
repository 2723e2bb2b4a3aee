"""Checks the results at the size of Llama-3.2-1B, with random weights."""

from snapexport.bench.experiments import context
from snapexport.bench.experiments.context import Options, tables
from snapexport.bench.results import Results
from snapexport.bench.setup import Setup

HELP = "decode at 1K and 32K with 1.2 G parameters, and what building takes"
DEVICES = ("cpu",)
DEFAULT = Options("1b", contexts=(1024, 32768), rounds=5, steps=3, flat_rounds=0)
QUICK = Options("1b", contexts=(512, 1024), kv_budgets=(128,), rounds=2, steps=2, flat_rounds=0)

__all__ = ["DEFAULT", "DEVICES", "HELP", "QUICK", "run", "tables"]


def run(setup: Setup, options: Options, results: Results) -> None:
    """Decode in turn, then build once more."""
    context.run(setup, options, results)
    results.add("build", {"seconds": setup.builds(options.checkpoint).seconds()})
