"""OpenVINO GenAI: continuous batching with paged attention, on a model that optimum converts.

Its cache holds 8 bits, as it does by default. Prefixes are not kept. An evicting cache keeps the
first block of 32 tokens, the latest ones up to half of its room, and voted blocks between them.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tools.studies.speed.peers.process import Scene, Variant

PACKAGES = ("openvino-genai", "openvino", "optimum-intel", "nncf")

_WEIGHTS: dict[str, tuple[int, str, str]] = {
    "fp32": (32, "fp32", "f32"),
    "bf16": (16, "fp32", "bf16"),
    "int8": (8, "int8", "bf16"),
    "int4": (4, "int4", "bf16"),
}
"""By name: bits of the weights, their format in the file, and what is calculated in."""

_INT4 = ("--group-size", "32", "--ratio", "1.0", "--sym")
_CHUNK = 512
"""Tokens that are prefilled together."""
_BLOCK = 32
_WINDOW = 8
"""Tokens of a prompt's end that vote, by default."""
_MOST = 4096
"""Tokens of an output."""


def variants(scene: "Scene") -> Iterator["Variant"]:
    """Each kind of weights, with all tokens and with as many as SnapStream keeps.

    Contexts are prefilled: longer ones than the longest prompt are left out.
    """
    from tools.studies.speed.peers.process import Variant

    contexts = tuple(one for one in scene.contexts if one <= scene.longest_prompt)
    common = {"model": scene.model, "directory": scene.files, "threads": scene.threads}
    for name, (bits, weights, precision) in _WEIGHTS.items():
        system = partial(Variant, bits=bits, python=scene.openvino_python, plugin=__file__)
        options = common | {"weights": weights, "precision": precision}
        yield system(f"OpenVINO GenAI {name}", options=options, contexts=contexts)
        options = options | {"kept": scene.kv_budget}
        yield system(f"OpenVINO GenAI {name}, evicting", options=options, contexts=contexts)


def make(
    model: str,
    directory: str,
    weights: str,
    precision: str,
    threads: int,
    kept: int | None = None,
    window: int = _WINDOW,
) -> "OpenVino":
    """Of a checkpoint, converted where that is not done."""
    path = converted(Path(model), Path(directory), weights)
    return OpenVino(path, precision, threads, kept, window)


def converted(model: Path, directory: Path, weights: str) -> Path:
    """The model's directory in OpenVINO's form."""
    out = directory / f"openvino.{model.name}.{weights}"
    unfinished = out.with_name(out.name + ".partial")
    if not out.is_dir():
        done = subprocess.run(command(str(model), unfinished, weights), capture_output=True)
        if done.returncode:
            raise RuntimeError(done.stderr.decode().strip().splitlines()[-1])
        unfinished.rename(out)
    return out


def command(model: str, out: Path, weights: str) -> list[str]:
    """The converter's command line, for its interpreter."""
    line = [sys.executable, "-P", "-m", "optimum.commands.optimum_cli", "export", "openvino"]
    line += ["--task", "text-generation-with-past", "--model", model]
    return [*line, "--weight-format", weights, *(_INT4 if weights == "int4" else ()), str(out)]


class OpenVino:
    """One request at a time. kept: tokens after eviction; None: all. window: that vote."""

    def __init__(
        self, path: Path, precision: str, threads: int, kept: int | None, window: int
    ) -> None:
        import openvino_genai as genai

        self._genai: Any = genai
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
        scheduling = genai.SchedulerConfig()
        scheduling.max_num_seqs, scheduling.enable_prefix_caching = 1, False
        scheduling.max_num_batched_tokens = _CHUNK
        if kept:
            scheduling.use_cache_eviction = True
            recent = (kept - _BLOCK) // 2 // _BLOCK * _BLOCK
            scheduling.cache_eviction_config = genai.CacheEvictionConfig(
                _BLOCK,
                recent,
                kept,
                genai.AggregationMode.NORM_SUM,
                snapkv_window_size=window,
            )
        self._pipeline = genai.ContinuousBatchingPipeline(str(path), scheduling, "CPU", settings)
        self._requests = 0
        self._stream: Iterator[int] = iter(())

    def first_token(self, tokens: Sequence[int]) -> None:
        self._stream = self.stream(tokens)
        self.step()

    def write(self, tokens: Sequence[int], pattern: str, most: int) -> str:
        """The likeliest text after a prompt, up to `most` tokens, that a regular expression has."""
        import openvino as ov

        config, form = self._genai.GenerationConfig(), self._genai.StructuredOutputConfig()
        form.regex = pattern
        config.max_new_tokens, config.structured_output_config = most, form
        self._requests += 1
        prompt, ids = ov.Tensor(np.array([tokens], np.int64)), list[int]()
        handle = self._pipeline.add_request(self._requests, prompt, config)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for output in handle.read().values() if handle.can_read() else ():
                ids += output.generated_ids
        return str(self._pipeline.get_tokenizer().decode(ids, skip_special_tokens=False))

    def fill(self, context: int) -> None:
        self.first_token([1 + n % 100 for n in range(context - 1)])

    def step(self) -> None:
        next(self._stream)

    def stream(self, tokens: Sequence[int]) -> Iterator[int]:
        """The request ends with the iterator."""
        import openvino as ov

        self._requests += 1
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = _MOST, True
        ids = ov.Tensor(np.array([tokens], np.int64))
        handle = self._pipeline.add_request(self._requests, ids, config)
        try:
            while True:
                self._pipeline.step()
                if handle.can_read():
                    for output in handle.read().values():
                        yield from output.generated_ids
        finally:
            handle.cancel()
