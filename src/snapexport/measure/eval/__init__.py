"""Measures what a compressed cache costs in accuracy.

Long-context tasks (tasks, haystack, sample) make a grid of requests and systems (grid, systems),
which `run` turns into outcomes, hit rates, a report and plots. `accuracy` compares logits with
transformers; `harness` is the model of lm-evaluation-harness. A build with --baseline is enough.
"""
