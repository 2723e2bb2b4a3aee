"""Measures what compression costs in logits, on whole sequences.

transformers, the full-cache graphs and the compressed graphs run the same tokens. Polygraphy runs
and compares; this package brings its runners for whole sequences and the measures that matter for
logits. Needs the build extra.
"""
