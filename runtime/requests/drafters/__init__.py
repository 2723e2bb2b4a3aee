"""Guesses the next tokens of running requests, for decode steps that check several at once."""
