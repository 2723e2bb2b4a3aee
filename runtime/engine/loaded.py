"""Collects what takers and followers are made of: graphs, weights and the caches of decode."""

from dataclasses import dataclass

from snapexport.contract.manifest import Manifest
from snapexport.runtime.engine.backend import Buffers, GraphBackend
from snapexport.runtime.engine.decode_steps import DecodeSteps
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.engine.rows import Rows


@dataclass(frozen=True)
class Loaded:
    """A build's graphs in a backend.

    weights: those that the graphs take as inputs, in the backend's memory.
    prompt_cache: another executor's of the same model, on the same device.
    """

    manifest: Manifest
    graphs: GraphSet
    backend: GraphBackend
    weights: Buffers
    limits: Limits
    decode: DecodeSteps
    rows: Rows
    prompt_cache: PromptCache | None
