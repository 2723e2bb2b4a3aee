"""Mutated graphs, with the hashes of the manifest recomputed."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from snapexport.contract.manifest import MANIFEST
from snapexport.errors import UserError
from tests.fuzz import material
from tests.fuzz.children import WronglyAcceptedError
from tests.fuzz.mutations import bytes_mutated
from tests.fuzz.outcomes import OTHER, SAME, VERIFY

LOCATIONS = (
    "/etc/passwd", "../llama/model.safetensors", "manifest.json", "weights/../manifest.json", "",
    "weights/", "weights/nothing.safetensors", "/dev/zero", "a\0b", "prefill.onnx", "[/b]",
    "./weights/model.norm.weight.safetensors", "//weights/x", "weights//lm_head.weight.safetensors",
)  # fmt: skip


LEAVING = ("/etc/passwd", "../llama/model.safetensors", "/dev/zero", "//weights/x")


class Graphs:
    name = "graphs"

    def __init__(self, work: Path) -> None:
        import onnx
        import onnxruntime  # noqa: F401

        self._build = work / material.BUILD
        self._expected = json.loads((work / material.EXPECTED).read_text())
        self._manifest = json.loads((self._build / MANIFEST).read_text())
        files = [entry["file"] for entry in self._manifest["graphs"].values()]
        self._models = {
            file: onnx.load(self._build / file, load_external_data=False) for file in files
        }

    def mutate(self, rng: random.Random, directory: Path) -> str:
        material.link_tree(self._build, directory)
        file = rng.choice(["prefill.onnx", "decode.onnx", "decode.1.onnx", "compress.onnx"])
        if rng.random() < 0.45:
            raw, told = bytes_mutated((self._build / file).read_bytes(), rng)
        else:
            model = self._models[file]
            told = rng.choice(WAYS)(model, rng)
            raw = model.SerializeToString(deterministic=True)
        material.replace(directory / file, raw)
        for entry in self._manifest["graphs"].values():
            if entry["file"] == file:
                entry["sha256"] = hashlib.sha256(raw).hexdigest()
        material.replace_manifest(directory, json.dumps(self._manifest).encode())
        self._foreign = "external" in told
        self._leaves = any(f"-> {place!r}" in told for place in LEAVING)
        return f"{file}: {told}"

    def judge(self, directory: Path) -> tuple[str, str]:
        from snapexport.build.verify import verify
        from snapexport.cli.inspect import operators
        from snapexport.contract.build_directory import Build

        found = material.tokens(directory)
        if found != self._expected and self._leaves:
            raise WronglyAcceptedError("bytes from outside of the build were read as a weight")
        build = Build.open(directory)
        operators(build)
        try:
            verify(build)
        except UserError as error:
            return VERIFY, str(error)
        if found == self._expected:
            return SAME, ""
        if self._foreign:
            raise WronglyAcceptedError("bytes that are not the manifest's weight were read as one")
        return OTHER, "another program"


def _external(model: Any, rng: random.Random) -> str:
    tensors = [one for one in model.graph.initializer if one.external_data]
    if not tensors:
        return _attribute(model, rng)
    tensor = rng.choice(tensors)
    entry = rng.choice(tensor.external_data)
    numbers = [0, 1, 8, -1, 64, 72, 2**31, 2**63 - 1, 2**64, "x", "", "1e3"]
    other = rng.choice(tensors).external_data[0].value
    old, entry.value = (
        entry.value,
        str(rng.choice([*LOCATIONS, other]) if entry.key == "location" else rng.choice(numbers)),
    )
    # An untouched value, or the file's place spelled in another way, is no foreign read.
    same = entry.value == old
    return f"{'same' if same else 'external'} {tensor.name}.{entry.key}: {old} -> {entry.value!r}"


def _dims(model: Any, rng: random.Random) -> str:
    values = [*model.graph.input, *model.graph.output]
    value = rng.choice(values)
    dims = value.type.tensor_type.shape.dim
    if not dims:
        return "no dims"
    dim = rng.choice(dims)
    old, dim.dim_value = (
        dim.dim_value,
        rng.choice([0, -1, 1, 2**31, 2**40, 2**62, dim.dim_value + 1]),
    )
    return f"shape of {value.name}: {old} -> {dim.dim_value}"


def _initializer_dims(model: Any, rng: random.Random) -> str:
    if not model.graph.initializer:
        return _dims(model, rng)
    tensor = rng.choice(model.graph.initializer)
    if not tensor.dims:
        tensor.dims.append(rng.choice([2, 2**40]))
        return f"dims of {tensor.name}: one more"
    at = rng.randrange(len(tensor.dims))
    old = tensor.dims[at]
    tensor.dims[at] = rng.choice([0, -1, 1, old + 1, old * 2, 2**31, 2**40, 2**62])
    return f"dims of {tensor.name}: {old} -> {tensor.dims[at]}"


def _attribute(model: Any, rng: random.Random) -> str:
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return _node(model, rng)
    node = rng.choice(nodes)
    one = rng.choice(node.attribute)
    one.i, one.f = rng.choice([-1, 0, 3, 2**40, 2**62]), rng.choice([0.0, -1.0, 1e38, float("nan")])
    return f"attribute {one.name} of {node.op_type} {node.name}"


def _node(model: Any, rng: random.Random) -> str:
    at = rng.randrange(len(model.graph.node))
    node = model.graph.node[at]
    way = rng.randrange(4)
    if way == 0:
        del model.graph.node[at]
        return f"dropped {node.op_type}"
    if way == 1:
        node.op_type = rng.choice(
            ["Add", "MatMul", "Reshape", "Loop", "If", "Nothing", "Expand", "Tile"]
        )
        return f"op_type {node.op_type}"
    if way == 2 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(
            [*node.output, "", "input_ids", "nothing"]
        )
        return f"input of {node.op_type}"
    node.domain = rng.choice(["", "com.microsoft", "nowhere", "snapexport"])
    return f"domain of {node.op_type}"


def _value(model: Any, rng: random.Random) -> str:
    tensors = [one for one in model.graph.initializer if one.raw_data]
    if not tensors:
        return _node(model, rng)
    tensor = rng.choice(tensors)
    raw = np.frombuffer(tensor.raw_data, np.uint8).copy()
    raw[rng.randrange(raw.size)] ^= 1 << rng.randrange(8)
    tensor.raw_data = raw.tobytes()
    return f"a bit of {tensor.name}"


def _spec(model: Any, rng: random.Random) -> str:
    value = rng.choice([*model.graph.input, *model.graph.output])
    if rng.random() < 0.5:
        old, value.name = (
            value.name,
            rng.choice(["x", "", "logits", "input_ids", "[/b]", value.name * 2]),
        )
        return f"name of {old}"
    tensor = value.type.tensor_type
    tensor.elem_type = rng.choice([0, 1, 2, 7, 10, 16, 99])
    return f"type of {value.name}"


WAYS = (
    _external, _external, _external, _dims, _initializer_dims, _attribute, _node, _value, _spec,
)  # fmt: skip
