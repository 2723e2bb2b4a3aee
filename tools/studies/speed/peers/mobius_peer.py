"""mobius: the graph of its static cache in ONNX Runtime, its caches bound in place.

Its own runtime is onnxruntime-genai, whose release drives no static cache. Prompts are taken in
chunks, as many tokens at once as snapexport's builds take.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tools.studies.speed.peers.process import Scene, Variant

PACKAGES = ("mobius-onnx", "onnxruntime")

ROOM = 256
"""Cache slots beyond the longest prompt."""

_CHUNK = 512


def variants(scene: "Scene") -> Iterator["Variant"]:
    """Weights in fp32, and those of a GGUF file as it stores them."""
    from tools.studies.speed.peers.process import Variant

    sources = {"fp32": (32, scene.model)}
    if scene.gguf:
        sources["the file's"] = (4, str(Path(scene.gguf).absolute()))
    for name, (bits, source) in sources.items():
        options = {"source": source, "directory": scene.files, "threads": scene.threads}
        options |= {"longest": max(scene.longest_prompt, *scene.contexts)}
        yield Variant(
            f"mobius {name}, static cache",
            bits,
            scene.peers_python,
            __file__,
            options,
            scene.contexts,
        )


def make(source: str, directory: str, longest: int, threads: int) -> "Mobius":
    """Of a checkpoint or a GGUF file, built where that is not done."""
    slots = longest + ROOM
    out = Path(directory) / f"mobius.{Path(source).name}.{slots}"
    if not (out / "model.onnx").is_file():
        done = subprocess.run(command(source, out, slots), capture_output=True)
        if done.returncode:
            raise RuntimeError(done.stderr.decode().strip().splitlines()[-1])
    return Mobius(out / "model.onnx", slots, threads)


def command(source: str, out: Path, slots: int) -> list[str]:
    """Its command line, for its interpreter."""
    static = ["--static-cache", "--max-seq-len", str(slots)]
    program = [sys.executable, "-P", "-m", "mobius"]
    if source.endswith(".gguf"):
        return [*program, "build-gguf", source, "--keep-quantized", *static, "-o", str(out)]
    return [*program, "build", "--config", source, *static, str(out)]


class Mobius:
    """One request at a time. slots: of each cache. logits: after the latest token, [V]."""

    def __init__(self, path: Path, slots: int, threads: int) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self._caches = []  # ONNX Runtime holds their addresses only
        for node in self._session.get_inputs():
            if "_cache." in node.name:
                self._caches.append(np.zeros((1, slots, node.shape[2]), np.float32))
                value = ort.OrtValue.ortvalue_from_numpy(self._caches[-1])
                self._binding.bind_ortvalue_input(node.name, value)
                self._binding.bind_ortvalue_output(f"updated_{node.name}", value)
        self._length, self._next = 0, 1

    def first_token(self, tokens: Sequence[int]) -> None:
        self._length = 0
        for start in range(0, len(tokens), _CHUNK):
            self.take(tokens[start : start + _CHUNK])

    def fill(self, context: int) -> None:
        rng = np.random.default_rng(0)
        for cache in self._caches:
            cache[...] = rng.standard_normal(cache.shape, np.float32)
        self._length = context - 1

    def step(self) -> None:
        self.take([self._next])
        self._length -= 1

    def stream(self, tokens: Sequence[int]) -> Iterator[int]:
        self.first_token(tokens)
        while True:
            yield self._next
            self.take([self._next])

    def take(self, tokens: Sequence[int]) -> None:
        """Take tokens after those that are there; logits and the likeliest token follow them."""
        first, count = self._length, len(tokens)
        self._length += count
        inputs = {
            "input_ids": np.array([tokens], np.int64),
            "position_ids": np.arange(first, self._length)[None],
            "write_indices": np.array([first], np.int64),
            "nonpad_kv_seqlen": np.array([self._length], np.int64),
        }
        for name, value in inputs.items():
            self._binding.bind_cpu_input(name, value)
        self._binding.bind_output("logits")  # anew: their number follows that of the tokens
        self._session.run_with_iobinding(self._binding)
        self.logits: Any = self._binding.get_outputs()[-1].numpy()[0, -1]
        self._next = int(self.logits.argmax())
