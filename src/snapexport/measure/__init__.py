"""What compression costs: eval, diff, bench and the page of `inspect`."""
