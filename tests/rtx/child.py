"""Parses graphs with TensorRT for RTX and builds engines of them; prints what the library said.

    python -m tests.rtx.child GRAPH.onnx ... [--capabilities 8.6 8.9] [--plugins LIBRARY]

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


class Log(rtx.ILogger):
    """Errors, and the lines of KEPT."""

    def __init__(self) -> None:
        rtx.ILogger.__init__(self)
        self.errors: list[str] = []
        self.told: list[tuple[str, str]] = []

    def log(self, severity: rtx.ILogger.Severity, msg: str) -> None:
        if severity in (rtx.ILogger.ERROR, rtx.ILogger.INTERNAL_ERROR):
            self.errors.append(msg)
        if found := KEPT.search(msg):
            self.told.append((found[1], found[2]))
            print(json.dumps({"told": found.groups()}), flush=True)  # it may abort after this


def main() -> None:
    """Print lines of JSON: an answer for each graph, after what was told of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("graphs", type=Path, nargs="+")
    parser.add_argument("--capabilities", nargs="*", default=[])
    parser.add_argument("--plugins", type=Path)
    given = parser.parse_args()
    log = Log()
    builder = rtx.Builder(log)
    if given.plugins:
        assert builder.get_plugin_registry().load_library(str(given.plugins)) is not None
    for graph in given.graphs:
        log.errors, log.told = [], []
        print(json.dumps(_answer(builder, log, graph, given.capabilities)), flush=True)


def _answer(builder: rtx.Builder, log: Log, graph: Path, capabilities: list[str]) -> dict[str, Any]:
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
        engine = builder.build_serialized_network(network, _config(builder, capabilities))
        answer["built"] = engine is not None
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


def _described(tensor: rtx.ITensor) -> list[Any]:
    return [tensor.name, tensor.dtype.name, list(tensor.shape)]


if __name__ == "__main__":
    main()
