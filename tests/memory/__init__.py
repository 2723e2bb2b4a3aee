"""The resident memory of `snapexport serve` under load, beside its bound."""
