"""Runs a serving loop: requests enter while others decode, and one is cancelled.

usage: python examples/continuous_batching.py BUILD PROMPT [PROMPT ...]
"""

import sys
from collections import defaultdict

from snapexport import LLM, SamplingParams

build, *prompts = sys.argv[1:]
llm = LLM(build)
params = SamplingParams(max_tokens=12, ignore_eos=True)

texts: dict[int, str] = defaultdict(str)
queue = list(prompts)
first = llm.submit(queue.pop(0), params)
steps = 0
while llm.busy or queue:
    if queue:  # a new request enters with every step
        llm.submit(queue.pop(0), params)
    for delta in llm.step():
        texts[delta.request_id] += delta.text
        if delta.finish_reason:
            print(
                f"request {delta.request_id} ({delta.finish_reason}): {texts[delta.request_id]!r}"
            )
    steps += 1
    if steps == 4:
        llm.cancel(first)  # its batch slot is free at once
print(f"{steps} steps, {llm.slots_used} batch slots in use")
