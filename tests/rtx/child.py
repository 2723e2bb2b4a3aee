"""Parses one graph with TensorRT for RTX and builds an engine of it; prints what the library said.

    python -m tests.rtx.child GRAPH.onnx [--capabilities 8.6 8.9] [--plugins LIBRARY]

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
    """Print lines of JSON; the last one is the answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("graph", type=Path)
    parser.add_argument("--capabilities", nargs="*", default=[])
    parser.add_argument("--plugins", type=Path)
    given = parser.parse_args()
    log = Log()
    builder = rtx.Builder(log)
    if given.plugins:
        assert builder.get_plugin_registry().load_library(str(given.plugins)) is not None
    network = builder.create_network(0)
    onnx_parser = rtx.OnnxParser(network, log)
    parsed = onnx_parser.parse_from_file(str(given.graph))
    answer: dict[str, Any] = {"parsed": parsed, "errors": log.errors}
    if parsed:
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        answer["layers"] = Counter(layer.type.name for layer in layers)
        answer["inputs"] = [_described(network.get_input(i)) for i in range(network.num_inputs)]
        answer["outputs"] = [_described(network.get_output(i)) for i in range(network.num_outputs)]
    if parsed and given.capabilities:
        config = builder.create_builder_config()
        config.num_compute_capabilities = len(given.capabilities)
        for index, capability in enumerate(given.capabilities):
            sm = getattr(rtx.ComputeCapability, "SM" + capability.replace(".", ""))
            config.set_compute_capability(sm, index)
        engine = builder.build_serialized_network(network, config)
        answer["built"] = engine is not None
        answer["nbytes"] = engine.nbytes if engine else None
        answer["scratch"] = next((int(n) for name, n in log.told if name.startswith("Total")), None)
    print(json.dumps(answer), flush=True)


def _described(tensor: rtx.ITensor) -> list[Any]:
    return [tensor.name, tensor.dtype.name, list(tensor.shape)]


if __name__ == "__main__":
    main()
