"""The API on the fake executor, as its own tests have it."""

from tests.serving.openai.conftest import patient, running, served

__all__ = ["patient", "running", "served"]
