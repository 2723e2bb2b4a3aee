"""Builds an engine file from a network, and checks the engine by loading it."""

import hashlib
import mmap
from pathlib import Path

from snapexport.builder.engines.tensorrt_callbacks import Log
from snapexport.builder.engines.tensorrt_network import load_plugins
from snapexport.contract.interface import in_place
from snapexport.contract.manifest import GraphEntry, GraphName
from snapexport.contract.tensorrt_bindings import trt
from snapexport.errors import UserError


class EngineWriter(trt.IStreamWriter):
    """Writes an engine to its file as TensorRT produces it, and keeps no copy.

    Whether TensorRT keeps one was not measured.
    """

    def __init__(self, path: Path) -> None:
        trt.IStreamWriter.__init__(self)
        self.size = 0
        self.problem: OSError | None = None
        self._digest = hashlib.sha256()
        self._file = path.open("wb")

    def write(self, data: bytes) -> int:
        """Called by TensorRT. An exception is not possible here; returning 0 stops TensorRT."""
        try:
            self._file.write(data)
        except OSError as problem:
            self.problem = problem
            return 0
        self._digest.update(data)
        self.size += len(data)
        return len(data)

    def close(self) -> str:
        """Close the file. Returns its SHA-256."""
        self._file.close()
        return self._digest.hexdigest()


def write_engine(
    builder: trt.Builder,
    network: trt.INetworkDefinition,
    config: trt.IBuilderConfig,
    path: Path,
) -> tuple[int, str] | None:
    """Build an engine, which may take an hour. Its size and SHA-256; None if TensorRT failed."""
    writer = EngineWriter(path)
    try:
        built = builder.build_serialized_network_to_stream(network, config, writer)
    finally:
        digest = writer.close()
    if writer.problem:
        raise writer.problem
    return (writer.size, digest) if built and writer.size else None


def check_engine(
    log: Log,
    path: Path,
    name: GraphName,
    entry: GraphEntry,
    *,
    version_compatible: bool,
    plugins: Path | None,
) -> int:
    """Load an engine and check that it writes caches in place. Returns its activations' bytes.

    A version-compatible engine contains its own runtime and the plugins. Raises UserError.
    """
    runtime = trt.Runtime(log)
    runtime.engine_host_code_allowed = version_compatible
    if plugins and not version_compatible:
        load_plugins(runtime.get_plugin_registry(), log, plugins.resolve())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        engine = runtime.deserialize_cuda_engine(content)
    if engine is None:
        raise log.failure(
            f"TensorRT built an engine of {name} but does not load it",
            "the GPU needs memory for the engine's weights: end other processes on it",
        )
    for output, past in in_place(name, entry).items():
        if engine.get_aliased_input_tensor(output) != past:
            raise UserError(
                f"in TensorRT's engine of {name}, {output} does not share the memory of {past}: "
                "each step would copy the cache",
                "build the graphs again with --target tensorrt, which writes caches by "
                "TensorScatter; if they are, please report it",
            )
    memory: int = engine.device_memory_size_v2
    return memory
