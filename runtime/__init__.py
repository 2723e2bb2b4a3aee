"""Runs a build: requests in, text out.

    requests -> scheduler (who is next) -> engine (which numbers) -> sampling, text -> deltas

`llm.LLM` ties them together. Needs numpy, tokenizers and an engine's library, and never torch or
transformers. Importing this package loads none of them.
"""
