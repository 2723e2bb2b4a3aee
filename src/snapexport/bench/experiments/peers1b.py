"""Compares with other libraries at the size of Llama-3.2-1B, with random weights of 4 bits.

CPUs usually run 4-bit weights, and the fixed cost of a node is small at this size.
"""

from snapexport.bench.experiments.peers import Options, run, summary, tables

HELP = "the same with 1.2 G parameters in 4 bits, at 1K"
DEVICES = ("cpu",)
DEFAULT = Options("1b", bits=(4,), contexts=(1024,), prompts=(1024,), prompt_rounds=1)
QUICK = Options("1b", (4,), contexts=(256,), prompts=(128,), kv_budget=128, rounds=2)

__all__ = ["DEFAULT", "DEVICES", "HELP", "QUICK", "run", "summary", "tables"]
