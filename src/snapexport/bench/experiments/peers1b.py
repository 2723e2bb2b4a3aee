"""Peers at the size of a real model: Llama-3.2-1B's geometry, random weights of 4 bits.

Those are what a CPU is given in practice, and the cost of a node beside its work is little there.
"""

from snapexport.bench.experiments.peers import Options, run, summary, tables

HELP = "the same with 1.2 G parameters in 4 bits, at 1K"
DEVICES = ("cpu",)
DEFAULT = Options("1b", bits=(4,), contexts=(1024,), prompts=(1024,), prompt_rounds=1)
QUICK = Options("1b", (4,), contexts=(256,), prompts=(128,), kv_budget=128, rounds=2)

__all__ = ["DEFAULT", "DEVICES", "HELP", "QUICK", "run", "summary", "tables"]
