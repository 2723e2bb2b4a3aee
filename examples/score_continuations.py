"""Picks the likeliest of several answers, and asks a question after compression.

usage: python examples/score_continuations.py BUILD PROMPT ANSWER [ANSWER ...]

A continuation goes through decode on the compressed cache: the vote over the prompt knows nothing
of it.
"""

import sys

from snapexport import LLM, SamplingParams

build, prompt, *answers = sys.argv[1:]
llm = LLM(build)

scores = llm.score([prompt] * len(answers), answers)
for answer, score in zip(answers, scores, strict=True):
    print(f"{sum(score.logprobs):9.3f}  {answer!r}{'  (greedy)' if score.is_greedy else ''}")

(later,) = llm.generate([prompt], SamplingParams(max_tokens=16), continuations=[answers[0]])
print(f"after {answers[0]!r}: {later.text!r}")
