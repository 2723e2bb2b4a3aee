"""Defines what a cache method does at run time: the base of every `methods/*/run.py`."""

from collections.abc import Callable, Sequence
from typing import Any

from snapexport.contract.manifest import Manifest
from snapexport.methods import table
from snapexport.runtime.engine.batch_executor import BatchExecutor
from snapexport.runtime.engine.followers import SlotFollower
from snapexport.runtime.engine.loaded import Loaded
from snapexport.runtime.engine.takers.taker import MakeTaker

MakeFollower = Callable[[Loaded], SlotFollower | None]
"""Makes a follower, or None where a build has nothing to follow."""

MakeDrafter = Callable[[BatchExecutor], Any]
"""Makes a drafter (`requests/drafters/`), or None where an executor has nothing to draft with."""


class MethodRun:
    """Does nothing. A method overrides what it does.

    takers: what takes its pieces of prefill work, by their kind. followers: what has state for each
    batch slot. drafters: what guesses tokens for requests.
    """

    takers: Sequence[tuple[str, MakeTaker]] = ()
    followers: Sequence[MakeFollower] = ()
    drafters: Sequence[MakeDrafter] = ()


def runs(manifest: Manifest) -> list[MethodRun]:
    """What each method of a build does, in the table's order."""
    methods = table.methods_on(manifest.geometry, manifest.graph_options)
    return [found for method in methods if (found := method.part("run"))]
