"""Parses a graph into a network, builds an engine file of it, and checks the engine by loading it.

Compares the network's tensors with the manifest's.
"""

import hashlib
import mmap
from pathlib import Path

from snapexport.builder.engines.tensorrt_callbacks import Log
from snapexport.contract.build_directory import in_place
from snapexport.contract.manifest import GraphEntry, GraphName
from snapexport.contract.tensorrt_bindings import trt
from snapexport.errors import UserError
from snapexport.files.dtypes import of_tensorrt

STRONGLY_TYPED = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
"""Keeps the graph's types. TensorRT 11 and TensorRT for RTX always do, and ignore the flag."""


def load_plugins(registry: trt.IPluginRegistry, log: Log, library: Path) -> None:
    """Register the operators of `library` in a builder's or a runtime's registry."""
    if registry.load_library(str(library)) is None:
        raise log.failure(
            f"TensorRT does not load {library}",
            "name libsnapexport_loadable.so, built for this version of TensorRT; no plugin of the "
            "same name may be registered already (docs/how-to/tensorrt.md)",
        )


def read_network(
    builder: trt.Builder, log: Log, path: Path, entry: GraphEntry, *, plugins: bool
) -> trt.INetworkDefinition:
    """Parse the graph at `path`, with its weights beside it. Raises UserError.

    plugins: take registered plugins for functions of their names. The parser owns the weights;
    TensorRT's bindings keep it alive with the network.
    """
    network = builder.create_network(STRONGLY_TYPED)
    parser = trt.OnnxParser(network, log)
    if plugins:
        parser.set_flag(trt.OnnxParserFlag.ENABLE_PLUGIN_OVERRIDE)
    if not parser.parse_from_file(str(path)):
        raise UserError(
            f"TensorRT {trt.__version__} does not take {path}: {_problems(parser)}",
            f"`snapexport lint BUILD` lists what the target refuses; TensorRT's log: {log.path}",
        )
    _require_as_recorded(path, network, entry)
    return network


def _problems(parser: trt.OnnxParser) -> str:
    errors = [_problem(parser, index) for index in range(parser.num_errors)]
    if not errors:
        return "it gives no reason"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return errors[0] + more


def _problem(parser: trt.OnnxParser, index: int) -> str:
    """One parser error as text."""
    error: trt.ParserError = parser.get_error(index)
    inside = "".join(f" in {function}" for function in error.local_function_stack())
    what = " ".join(error.desc().split())
    return f"{error.node_operator()} '{error.node_name()}'{inside}: {what}"


def _require_as_recorded(path: Path, network: trt.INetworkDefinition, entry: GraphEntry) -> None:
    """Raise UserError unless TensorRT sees the manifest's tensors, which the runtime allocates."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    for tensors, specs in ((inputs, entry.inputs), (outputs, entry.outputs)):
        found = {tensor.name: _description(tensor) for tensor in tensors}
        wanted = {spec.name: (spec.dtype, spec.shape) for spec in specs}
        for name in sorted(found.keys() | wanted.keys()):
            if found.get(name) != wanted.get(name):
                raise UserError(
                    f"{name} of {path} is {found.get(name)} in TensorRT, "
                    f"and {wanted.get(name)} in the manifest",
                    "this is a fault of snapexport or of TensorRT's parser: please report it",
                )


def _description(tensor: trt.ITensor) -> tuple[str, list[int]]:
    dtype = tensor.dtype.name
    return of_tensorrt(dtype), list(tensor.shape[:])


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
