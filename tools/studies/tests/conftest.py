"""The fixtures of the tests of the package: a tiny checkpoint, a build of it, traces on disk."""

from tests.conftest import checkpoint, made_once, one_thread, store, tiny_build

__all__ = ["checkpoint", "made_once", "one_thread", "store", "tiny_build"]
