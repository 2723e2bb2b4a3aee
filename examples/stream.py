"""Prints a completion while it is made, up to the end of its first line.

usage: python examples/stream.py BUILD PROMPT
"""

import sys

from snapexport import LLM, SamplingParams

build, prompt = sys.argv[1:]
for delta in LLM(build).stream(prompt, SamplingParams(max_tokens=64, stop=("\n",))):
    print(delta.text, end="", flush=True)
print()
