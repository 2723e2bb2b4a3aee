"""Scores learned on other texts say what each position is worth (KVzap, arXiv:2601.07891)."""
