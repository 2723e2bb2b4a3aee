"""Trains the checkpoint of `snapexport.vault` on a CPU."""
