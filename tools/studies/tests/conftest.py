"""The fixtures of the tests of the package: a tiny checkpoint, a build of it, traces on disk."""

from tests.conftest import cached_traces, checkpoint, tiny_build

__all__ = ["cached_traces", "checkpoint", "tiny_build"]
