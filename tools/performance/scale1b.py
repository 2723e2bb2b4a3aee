"""A spot check at the size of a real model: Llama-3.2-1B's geometry, random weights."""

from . import context
from .context import Options
from .report import Report
from .setup import Setup

HELP = "decode at 1K and 32K with 1.2 G parameters, and what building takes"
DEFAULT = Options("1b", contexts=(1024, 32768), rounds=5, steps=3, flat_rounds=0)
QUICK = Options("1b", contexts=(512, 1024), kv_budgets=(128,), rounds=2, steps=2, flat_rounds=0)


def run(setup: Setup, options: Options, report: Report) -> None:
    """Decode in turn, then build once more."""
    context.run(setup, options, report)
    report.sections["build"].append({"seconds": setup.builds(options.checkpoint).seconds()})
