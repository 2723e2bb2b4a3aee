"""Completes several prompts at once.

usage: python examples/offline_generate.py BUILD PROMPT [PROMPT ...]
"""

import sys

from snapexport import LLM, SamplingParams

build, *prompts = sys.argv[1:]
llm = LLM(build)
for answer in llm.generate(prompts, SamplingParams(max_tokens=32)):
    print(f"{len(answer.prompt_token_ids)} tokens -> {answer.text!r} ({answer.finish_reason})")
