"""Hypothesis without deadlines: the machines that run these tests are shared."""

from hypothesis import settings

settings.register_profile("shared", deadline=None, max_examples=100)
settings.load_profile("shared")
