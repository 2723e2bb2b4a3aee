"""Builds of several ranks."""
