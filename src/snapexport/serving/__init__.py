"""Serves a build: an OpenAI-compatible API, and Triton Inference Server."""
