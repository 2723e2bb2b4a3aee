"""One taker for each kind of prefill work: it carries out a `Piece` of a prompt."""
