"""Makes builds of one checkpoint for any cache and number of batch slots, each only once.

Each number of batch slots is traced once; surgery on that trace makes the builds of all caches.
"""

import hashlib
import os
import shutil
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import snapexport
from snapexport.builder import BuildOptions
from snapexport.builder import run as run_build
from snapexport.builder.derive import derive
from snapexport.builder.engines.packing import pack
from snapexport.builder.progress import Silent
from snapexport.builder.staging import scratch
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.manifest import Manifest, Quantization
from snapexport.contract.targets import Target
from snapexport.files.dtypes import DType
from snapexport.methods.extend.spec import ExtendOptions
from snapexport.methods.sparse_prefill.spec import SparsePrefillOptions
from snapexport.methods.top_tokens.spec import TopTokensOptions

PLAIN = GraphOptions()
IN_INT8 = GraphOptions(cache_dtype="int8", decode_attention="valid")
IN_BLOCKS = GraphOptions(methods=(ExtendOptions(extend=True),))

_MAKERS = ("build", "contract", "exporter", "graphs")
"""The packages whose code makes a build."""


@cache
def code_digest() -> str:
    """Eight digits of the digest of those packages' sources."""
    package = Path(snapexport.__file__).parent
    files = (file for maker in _MAKERS for file in sorted((package / maker).rglob("*.py")))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


@dataclass(frozen=True)
class Builds:
    """model: the checkpoint. directory: where builds are, and are looked for. chunk: prefill's."""

    model: Path
    directory: Path
    chunk: int = 512
    dtype: DType = "fp32"
    weights: Quantization | None = None
    target: Target = "onnxruntime"
    top_tokens: int = 0

    def get(
        self, L_max: int, kv_budget: int | None, batch: int = 1, form: GraphOptions = PLAIN
    ) -> Build:
        """The build with `batch` batch slots. kv_budget: of SnapStream; None: the full cache."""
        held = (
            f"{form.cache_dtype}.{form.decode_attention}"
            + ".extend" * form.of(ExtendOptions).extend
        )
        budget = form.of(SparsePrefillOptions).prefill_budget
        held += f".prefill{budget}" if budget else ""
        cache = f"budget{kv_budget}.{held}" if kv_budget else "full"
        out = self._path(batch, f"L{L_max}.{cache}")
        if not out.is_dir():
            traced = self.traced(batch)
            geometry = self._options(out, batch, L_max, kv_budget).geometry(traced.manifest.model)
            form = form.with_options(TopTokensOptions(top_tokens=self.top_tokens))
            with scratch(out) as directory:  # whole, or not there
                made = directory / "build"
                derive(traced, geometry, made, form, link_weights=self._links).directory.rename(out)
        return self._opened(out)

    def packed(
        self, L_max: int, kv_budget: int | None, batch: int = 1, form: GraphOptions = PLAIN
    ) -> Build:
        """The same with weights that `snapexport engine` rearranged for this processor."""
        made = self.get(L_max, kv_budget, batch, form)
        out = made.directory.with_name(made.directory.name + ".packed")
        if not out.is_dir():
            with scratch(out) as directory:
                shutil.copytree(made.directory, directory / "build", copy_function=os.link)
                build = Build.open(directory / "build")
                pack(build, build.manifest.graphs, overwrite=False, progress=Silent())
                build.directory.rename(out)
        return self._opened(out)

    def served(self, L_max: int, kv_budget: int, batch: int) -> Build:
        """A build of SnapStream by itself, with the tokenizer and config.json that servers read."""
        out = self._path(batch, f"L{L_max}.budget{kv_budget}.served")
        if not out.is_dir():
            run_build(self._options(out, batch, L_max, kv_budget))
        return self._opened(out)

    def traced(self, batch: int = 1) -> Build:
        """The traced build that all others of `batch` batch slots are derived from."""
        out = self._path(batch, "traced")
        if not out.is_dir():
            self._trace(out, batch)
        return self._opened(out)

    def seconds(self) -> float:
        """Seconds of a build with --baseline, which is deleted."""
        with scratch(self._path(1, "traced")) as directory:
            started = time.perf_counter()
            self._trace(directory / "build", 1)
            return time.perf_counter() - started

    @property
    def _links(self) -> bool:
        """Whether builds hard-link the checkpoint's weights: not if they are converted."""
        return self.weights is None

    def _trace(self, out: Path, batch: int) -> None:
        run_build(replace(self._options(out, batch, 4 * self.chunk, self.chunk), baseline=True))

    def _opened(self, directory: Path) -> Build:
        """Open a build, and add weights to one copied from another machine without them."""
        for weights in Manifest.read(directory).weights:
            place = directory / weights.file
            if not place.exists():
                place.parent.mkdir(exist_ok=True)
                os.link(self.model / place.name, place)
        return Build.open(directory)

    def _path(self, batch: int, what: str) -> Path:
        weights, top = self.weights or self.dtype, f"top{self.top_tokens}"
        parts = self.model.name, weights, self.target, top, f"{batch}slots", what
        return self.directory / code_digest() / ".".join(parts)

    def _options(self, out: Path, batch: int, L_max: int, kv_budget: int | None) -> BuildOptions:
        return BuildOptions.of(
            model=str(self.model),
            out=out,
            L_max=L_max,
            policy="snapstream" if kv_budget else "full",
            kv_budget=kv_budget,
            batch=batch,
            decode_batches=(),
            prefill_chunk=self.chunk,
            dtype=self.dtype,
            weights=self.weights,
            target=self.target,
            top_tokens=self.top_tokens,
            link_weights=self._links and self.model.is_dir(),  # a GGUF file's are made anew
        )
