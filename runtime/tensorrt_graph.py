"""One TensorRT engine, bound once to device memory that never moves.

Responsible for where each input and output lies, and for a run in three parts on the device's one
stream: what the host wrote goes up, the engine runs, what the host reads comes down. Knows no slot.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.bytes import tensor_bytes
from snapexport.contract.manifest import GraphEntry, GraphName, TensorSpec
from snapexport.runtime.cuda_device import Device, DeviceError

if TYPE_CHECKING:
    import tensorrt as trt


def contexts_of(
    device: Device, engines: "Mapping[GraphName, trt.ICudaEngine]", errors: Sequence[str]
) -> "dict[GraphName, trt.IExecutionContext]":
    """A context for each engine, all in one workspace, since no two of them ever run at once.

    errors: TensorRT's own, as they come.
    """
    import tensorrt as trt

    size = max(engine.device_memory_size_v2 for engine in engines.values())
    workspace = device.allocate(max(size, 1))
    strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
    contexts = {}
    for name, engine in engines.items():
        contexts[name] = engine.create_execution_context(strategy)
        if contexts[name] is None:
            why = f": {errors[-1].strip()}" if errors else ""
            raise DeviceError(f"TensorRT makes no context of {name}{why}")
        contexts[name].set_device_memory(workspace, size)
    return contexts


class BoundGraph:
    """A context and its memory. Write `arrays`, `run`, read `arrays`.

    addresses: of every input and output. arrays: those of the host's side, pinned.
    """

    def __init__(
        self,
        device: Device,
        context: "trt.IExecutionContext",
        entry: GraphEntry,
        in_place: Mapping[str, str],
        given: Mapping[str, int],
    ) -> None:
        """in_place: the input whose memory an output shares. given: memory that exists already."""
        self.entry = entry
        self.addresses: dict[str, int] = dict(given)
        self.arrays: dict[str, NDArray[Any]] = {}
        self._device = device
        self._context = context
        self._read = names.read_each_run(spec.name for spec in entry.outputs)
        for spec in (*entry.inputs, *entry.outputs):
            self._bind(spec, in_place.get(spec.name, spec.name))

    def run(self) -> None:
        """From the host's inputs to the host's outputs."""
        self.enqueue()
        self._device.synchronize()

    def enqueue(self) -> None:
        """Put the run on the stream. Everything stays where it is, so that it can be captured."""
        for spec in self.entry.inputs:
            if spec.name in self.arrays:
                self._device.upload(self.addresses[spec.name], self.arrays[spec.name])
        if not self._context.execute_async_v3(self._device.stream):
            raise DeviceError(f"TensorRT did not run {self.entry.file}")
        for name in self._read:
            self._device.download(self.arrays[name], self.addresses[name])

    def rows(self, output: str, start: int, stop: int) -> NDArray[Any]:
        """Of an output with a host's side; brought down now if no run does it."""
        array = self.arrays[output]
        rows: NDArray[Any] = array[start:stop]
        if output not in self._read:
            self._device.download(rows, self.addresses[output] + start * array.strides[0])
            self._device.synchronize()
        return rows

    def _bind(self, spec: TensorSpec, place: str) -> None:
        if place not in self.addresses:
            self.addresses[place] = self._device.allocate(tensor_bytes(spec))
        self.addresses[spec.name] = self.addresses[place]
        if spec.name in names.OF_HOST:
            self.arrays[spec.name] = self._device.pinned(spec.shape, spec.dtype)
        if not self._context.set_tensor_address(spec.name, self.addresses[spec.name]):
            raise DeviceError(f"{self.entry.file}: TensorRT takes no memory for '{spec.name}'")
