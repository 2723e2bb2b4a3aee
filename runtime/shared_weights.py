"""Loads the weights that graphs take as inputs, one copy for all graphs.

On the CPU they are mapped from the build's files. On a GPU they are copied to it, file by file.
"""

from collections.abc import Iterable

import numpy as np

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import REBUILD, GraphName, TensorSpec
from snapexport.contract.safetensors import TensorSpan
from snapexport.contract.tensors import OF_SAFETENSORS
from snapexport.runtime.backend import Buffers, Memory


def load_weights(build: Build, graphs: Iterable[GraphName], memory: Memory) -> Buffers:
    """The weights that these graphs take as inputs. Raises UserError if the build lacks one."""
    if not build.manifest.graph_options.share_weights:
        return {}
    inputs = (spec for name in graphs for spec in build.manifest.graphs[name].inputs)
    wanted = {spec.name: spec for spec in inputs if names.is_weight(spec.name)}
    spans = build.weight_spans()
    loaded = {}
    for name, spec in wanted.items():
        span = _span_of(spec, spans)
        loaded[name] = memory.load(
            spec, np.memmap(span.file, np.uint8, "r", span.offset, span.nbytes)
        )
    return loaded


def _span_of(spec: TensorSpec, spans: dict[str, TensorSpan]) -> TensorSpan:
    span = spans.get(spec.name)
    found = span and (OF_SAFETENSORS.get(span.dtype), list(span.shape))
    if span is None or found != (spec.dtype, spec.shape):
        raise UserError(
            f"the build has {found} for the weight '{spec.name}', its graphs want "
            f"{(spec.dtype, spec.shape)}",
            REBUILD,
        )
    return span
