"""What the compression costs: one sequence through transformers, the full graphs and ours.

Polygraphy runs and compares; this package brings runners for whole sequences and the measures that
matter for logits. Needs the build extra.
"""
