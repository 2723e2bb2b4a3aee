"""Chunks of a long prompt attend to the best blocks of their past (--prefill-budget)."""
