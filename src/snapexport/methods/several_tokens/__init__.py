"""Decode steps check several drafted tokens of each batch slot at once (--tokens-per-step)."""
