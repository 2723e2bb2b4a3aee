"""Runs a build's graphs once, before the first request."""

import numpy as np

from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import SamplingParams


def warm_up(llm: LLM) -> None:
    """Run every graph once, before the first request."""
    run_every_decode(llm)
    limits = llm.executor.limits
    prompt = [0] * min(limits.prefill_chunk + 1, limits.longest_prompt)
    llm.generate([prompt], SamplingParams(max_tokens=2, ignore_eos=True))


def run_every_decode(llm: LLM) -> None:
    """Run a decode step of idle batch slots on each decode graph. Overwrites all batch slots."""
    for count in llm.executor.limits.decode_batches:
        idle = np.zeros(count, np.int64)
        llm.executor.decode(idle, idle, idle)
