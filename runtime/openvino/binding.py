"""Ties a compiled graph to buffers. Nothing is allocated or rebound after that."""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from snapexport.contract.manifest import GraphEntry
from snapexport.runtime.engine.backend import Buffer, Buffers, Work
from snapexport.runtime.openvino.reading import Read

Arrays = Mapping[str, NDArray[Any]]


def bind(request: Any, read: Read, entry: GraphEntry, buffers: Buffers) -> Work:
    """Return what runs a request over buffers, and then writes what is new into the caches."""
    arrays = {spec.name: _array(buffers[spec.name]) for spec in (*entry.inputs, *entry.outputs)}
    inputs = {spec.name: arrays[spec.name] for spec in entry.inputs}
    outputs, after = _outputs(read, inputs, arrays)
    for name, array in inputs.items():
        if name in read.inputs:
            request.set_tensor(name, ov.Tensor(array, shared_memory=True))
    for name, array in outputs.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def run() -> None:
        request.start_async()
        request.wait()
        for work in after:
            work()

    return run


def _outputs(
    read: Read, inputs: Arrays, arrays: Arrays
) -> tuple[dict[str, NDArray[Any]], list[Work]]:
    """Where each output of the request goes, and what follows a run."""
    outputs: dict[str, NDArray[Any]] = {}
    after: list[Work] = []
    taken = {array.ctypes.data for array in inputs.values()}
    for name, (shape, dtype) in read.outputs.items():
        target = arrays.get(name)
        if target is None or target.ctypes.data in taken:
            outputs[name] = np.zeros(shape, dtype)
        else:
            outputs[name] = target
            continue
        if target is not None:  # OpenVINO may write an output before it has read all inputs
            after.append(_copy(target, outputs[name]))
    for present, write in read.writes.items():
        after.append(_write(arrays[present], outputs[write.states], outputs[write.start]))
    return outputs, after


def _copy(target: NDArray[Any], source: NDArray[Any]) -> Work:
    def copy() -> None:
        target[...] = source

    return copy


def _write(cache: NDArray[Any], states: NDArray[Any], start: NDArray[Any]) -> Work:
    """Write each row's new states into its cache [B,H,S,D]."""
    rows, count = range(len(cache)), states.shape[2]

    def write() -> None:
        for row in rows:
            first = start[row]
            cache[row, :, first : first + count] = states[row]

    return write


def _array(buffer: Buffer) -> NDArray[Any]:
    """A buffer's memory. What was loaded has an address alone."""
    if buffer.array is not None:
        return buffer.array
    raw = (ctypes.c_uint8 * buffer.nbytes).from_address(buffer.address)
    flat = np.ctypeslib.as_array(raw)
    return flat.view(np.dtype(buffer.dtype)).reshape(buffer.shape)
