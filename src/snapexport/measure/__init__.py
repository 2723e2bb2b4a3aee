"""Measures what compression costs: eval, bench and the page of `inspect`."""
