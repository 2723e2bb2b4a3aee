"""onnxruntime-genai, on a model that its own builder makes, and on a build of snapexport.

`Graph` runs the same decode graph without genai's loop, over caches of random numbers: genai
itself can only prefill, which takes minutes for long contexts.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from snapexport.contract.manifest import Quantization
    from tools.studies.speed.peers.process import Scene, Variant

PACKAGES = ("onnxruntime-genai", "onnxruntime")

ROOM = 256
"""Positions beyond the longest context."""

_OURS: "dict[str, tuple[int, Quantization | None]]" = {
    "snapexport fp32 in onnxruntime-genai": (32, None),
    "snapexport int4 in onnxruntime-genai": (4, "int4"),
    "snapexport the file's in onnxruntime-genai": (4, "keep"),
}
"""Bits of the weights, and how a build has them."""


def variants(scene: "Scene") -> Iterator["Variant"]:
    """The generator after prompts and the shortest context, its graph after all contexts.

    A folder of `snapexport genai` is run by the generator only.
    """
    from tools.studies.speed.peers.process import Variant

    for precision, bits in {"fp32": 32, "int4": 4}.items():
        common = {"model": scene.model, "directory": scene.files, "threads": scene.threads}
        common |= {"precision": precision}
        system = partial(Variant, bits=bits, python=scene.peers_python, plugin=__file__)
        name = f"onnxruntime-genai {precision}"
        options = common | {"longest": scene.longest_prompt, "graph": False}
        yield system(name, options=options, contexts=scene.contexts[:1])
        options = common | {"longest": max(scene.contexts), "graph": True}
        yield system(f"{name}, its graph", options=options, contexts=scene.contexts, prompts=False)
    for name, (bits, weights) in _OURS.items():
        if bits in scene.bits and scene.wants(name):
            folder = _written(scene, weights)
            options = {"folder": str(folder), "threads": scene.threads}
            options |= {"longest": scene.longest_prompt}
            contexts = scene.contexts[:1]
            yield Variant(name, bits, scene.peers_python, __file__, options, contexts)


def _written(scene: "Scene", weights: "Quantization | None") -> Path:
    """The folder that `snapexport genai` writes of a build; made where it is missing."""
    from snapexport.files.copying import copy_file
    from snapexport.genai.folder import GenaiOptions, write_folder
    from tools.studies.speed.builds import IN_BLOCKS

    builds = scene.builds(weights, "fp32", "onnxruntime")
    build = builds.get(max(scene.contexts), scene.kv_budget, form=IN_BLOCKS).directory
    out = build.with_name(build.name + ".genai")
    if not out.is_dir():
        if not (build / "config.json").is_file():  # derived builds have none
            copy_file(Path(scene.model) / "config.json", build / "config.json")
        write_folder(GenaiOptions(build=build, out=out))
    return out.absolute()


def make(longest: int, threads: int, graph: bool = False, **of: str) -> "Genai | Graph":
    """The generator, or its graph, of a folder or of a model that is built."""
    if "folder" in of:
        path = Path(of["folder"])
        _set_threads(path, threads)
    else:
        path = built(Path(of["model"]), Path(of["directory"]), of["precision"], threads)
    return Graph(path, longest + ROOM, threads) if graph else Genai(path, longest + ROOM)


def built(model: Path, directory: Path, precision: str, threads: int) -> Path:
    """The builder's output, with so many threads; made where it is missing."""
    out = directory / f"genai.{model.name}.{precision}"
    if not (out / "genai_config.json").is_file():
        line = command(str(model), out, precision, directory / "cache")
        done = subprocess.run(line, capture_output=True)
        if done.returncode:
            raise RuntimeError(done.stderr.decode().strip().splitlines()[-1])
    _set_threads(out, threads)
    return out


def command(model: str, out: Path, precision: str, cache: Path) -> list[str]:
    """The builder's command line, for its interpreter."""
    options = ["-i", model, "-o", str(out), "-p", precision, "-e", "cpu", "-c", str(cache)]
    return [sys.executable, "-P", "-m", "onnxruntime_genai.models.builder", *options]


def _set_threads(out: Path, threads: int) -> None:
    config = json.loads((out / "genai_config.json").read_text())
    session = config["model"]["decoder"]["session_options"]
    session.pop("session.intra_op.allow_spinning", None)
    session["intra_op_num_threads"] = threads
    (out / "genai_config.json").write_text(json.dumps(config, indent=1))


class Genai:
    """Its own generator."""

    def __init__(self, directory: Path, longest: int) -> None:
        import onnxruntime_genai as og

        self._og, self._longest = og, longest
        self._model = og.Model(str(directory))
        self._generator: Any = None

    def first_token(self, tokens: Sequence[int]) -> None:
        """No text ends before the longest."""
        self._generator = None  # one cache at a time
        params = self._og.GeneratorParams(self._model)
        params.set_search_options(max_length=self._longest, min_length=self._longest)
        self._generator = self._og.Generator(self._model, params)
        self._generator.append_tokens(np.array(tokens, np.int32))
        self.step()

    def fill(self, context: int) -> None:
        self.first_token([1] * (context - 1))

    def step(self) -> None:
        self._generator.generate_next_token()

    def stream(self, tokens: Sequence[int]) -> Iterator[int]:
        self.first_token(tokens)
        while True:
            yield int(self._generator.get_next_tokens()[0])
            self.step()


class Graph:
    """Its decode graph in ONNX Runtime, caches bound in place, as its generator binds them."""

    def __init__(self, directory: Path, longest: int, threads: int) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        path = directory / "model.onnx"
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self._caches = []  # ONNX Runtime holds their addresses only
        for name, shape in _cache_shapes(directory, longest).items():
            block = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
            self._caches.append(np.resize(block, shape))
            value = ort.OrtValue.ortvalue_from_numpy(self._caches[-1])
            self._binding.bind_ortvalue_input(name, value)
            present = name.replace("past_key_values", "present")
            self._binding.bind_ortvalue_output(present, value)
        self._binding.bind_output("logits")
        given = {one.name for one in self._session.get_inputs()}
        self._given = given & {"input_ids", "attention_mask", "position_ids"}
        self._length = 1

    def first_token(self, tokens: Sequence[int]) -> None:
        raise NotImplementedError("its generator is measured")

    def fill(self, context: int) -> None:
        self._length = context

    def step(self) -> None:
        inputs = {
            "input_ids": np.ones((1, 1), np.int64),
            "attention_mask": np.ones((1, self._length), np.int64),
            "position_ids": np.full((1, 1), self._length - 1),
        }
        for name in self._given:
            self._binding.bind_cpu_input(name, inputs[name])
        self._session.run_with_iobinding(self._binding)


def _cache_shapes(directory: Path, longest: int) -> dict[str, tuple[int, ...]]:
    """By the names of the inputs."""
    decoder = json.loads((directory / "genai_config.json").read_text())["model"]["decoder"]
    shape = 1, decoder["num_key_value_heads"], longest, decoder["head_size"]
    patterns = (decoder["inputs"][f"past_{kind}_names"] for kind in ("key", "value"))
    layers = range(decoder["num_hidden_layers"])
    return {pattern % layer: shape for pattern in patterns for layer in layers}
