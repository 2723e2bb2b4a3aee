"""Hostile input: mutated files, each read in a child process with limits on memory and time."""
