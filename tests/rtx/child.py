"""Parses graphs with TensorRT for RTX and builds engines of them; prints what the library said.

    python -m tests.rtx.child GRAPH.onnx ... [--capabilities 8.6 8.9] [--plugins LIB] [--kernels]

A process of its own, since faults of a graph can abort the library. Needs no GPU.
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import tensorrt_rtx as rtx

KEPT = re.compile(r"(Successfully created plugin|Total Activation Memory): (\w+)")
KERNEL = re.compile(
    r"Name: (\S+), LayerType: (?!signal|wait)\w+, Inputs: (.*?), Constants: .*Outputs: (.*)"
)
TENSOR = re.compile(r"\{ Name: ([^,]+), Dimensions: \[([\d,]*)\]")


class Log(rtx.ILogger):
    """Errors, the lines of KEPT, and the engine's kernels."""

    def __init__(self) -> None:
        rtx.ILogger.__init__(self)
        self.errors: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.kernels: list[list[Any]] = []

    def log(self, severity: rtx.ILogger.Severity, msg: str) -> None:
        if severity in (rtx.ILogger.ERROR, rtx.ILogger.INTERNAL_ERROR):
            self.errors.append(msg)
        if msg.startswith("Layers:"):
            self.kernels += map(_kernel, KERNEL.finditer(msg))
        if found := KEPT.search(msg):
            self.told.append((found[1], found[2]))
            print(json.dumps({"told": found.groups()}), flush=True)  # it may abort after this


def main() -> None:
    """Print lines of JSON: an answer for each graph, after what was told of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("graphs", type=Path, nargs="+")
    parser.add_argument("--capabilities", nargs="*", default=[])
    parser.add_argument("--plugins", type=Path)
    parser.add_argument("--kernels", action="store_true", help="tell the engine's kernels")
    given = parser.parse_args()
    log = Log()
    builder = rtx.Builder(log)
    if given.plugins:
        assert builder.get_plugin_registry().load_library(str(given.plugins)) is not None
    for graph in given.graphs:
        log.errors, log.told, log.kernels = [], [], []
        answer = _answer(builder, log, graph, given.capabilities, given.kernels)
        print(json.dumps(answer), flush=True)


def _answer(
    builder: rtx.Builder, log: Log, graph: Path, capabilities: list[str], tells_kernels: bool
) -> dict[str, Any]:
    network = builder.create_network(0)
    onnx_parser = rtx.OnnxParser(network, log)
    parsed = onnx_parser.parse_from_file(str(graph))
    answer: dict[str, Any] = {"parsed": parsed, "errors": log.errors}
    if not parsed:
        return answer
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    answer["layers"] = Counter(layer.type.name for layer in layers)
    answer["inputs"] = [_described(network.get_input(i)) for i in range(network.num_inputs)]
    answer["outputs"] = [_described(network.get_output(i)) for i in range(network.num_outputs)]
    if capabilities:
        config = _config(builder, capabilities)
        if tells_kernels:
            config.profiling_verbosity = rtx.ProfilingVerbosity.DETAILED
        engine = builder.build_serialized_network(network, config)
        answer["built"] = engine is not None
        answer["kernels"] = log.kernels
        answer["nbytes"] = engine.nbytes if engine else None
        answer["scratch"] = next((int(n) for name, n in log.told if name.startswith("Total")), None)
    return answer


def _config(builder: rtx.Builder, capabilities: list[str]) -> rtx.IBuilderConfig:
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(capabilities)
    for index, capability in enumerate(capabilities):
        sm = getattr(rtx.ComputeCapability, "SM" + capability.replace(".", ""))
        config.set_compute_capability(sm, index)
    return config


def _kernel(found: re.Match[str]) -> list[Any]:
    """[name, inputs, outputs], these by [name, shape]."""
    ends = ([[name, shape] for name, shape in TENSOR.findall(part)] for part in found.groups()[1:])
    return [found[1], *ends]


def _described(tensor: rtx.ITensor) -> list[Any]:
    return [tensor.name, tensor.dtype.name, list(tensor.shape)]


if __name__ == "__main__":
    main()
