"""Runs a build: one prompt's pieces into a batch slot, and decode steps. Knows no request."""
