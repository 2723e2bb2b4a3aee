"""Reads and writes files: bounded, regular, whole. Knows no build and no graph."""
