"""Layers of hybrids hold recurrent states, beside or in place of keys and values."""
