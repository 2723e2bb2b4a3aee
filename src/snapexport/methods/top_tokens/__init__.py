"""Graphs output the likeliest next tokens beside the logits (--top-tokens)."""
