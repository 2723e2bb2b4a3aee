"""Runs a build's graphs once, before the first request."""

import numpy as np

from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams


def warm_up(llm: LLM) -> None:
    """Run every graph once, before the first request."""
    run_every_decode(llm)
    limits = llm.executor.limits
    prompt = [0] * min(limits.prefill_chunk + 1, limits.longest_prompt)
    llm.generate([prompt], SamplingParams(max_tokens=2, ignore_eos=True))


def run_every_decode(llm: LLM) -> None:
    """Run a step of idle batch slots on each graph of decode. Overwrites all batch slots."""
    limits = llm.executor.limits
    for count in limits.decode_batches:
        idle = np.zeros(count, np.int64)
        llm.executor.decode(idle, idle, idle)
        if limits.tokens_per_step > 1:
            several = np.zeros((count, limits.tokens_per_step), np.int64)
            llm.executor.decode(several, idle, idle)
