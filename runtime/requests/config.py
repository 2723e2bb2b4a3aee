"""Holds how a build is loaded, checked, with the defaults of `LLM`."""

import hashlib
import importlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from snapexport.contract.build_directory import Build
from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.graph_set import Role
from snapexport.runtime.engine.open_executor import (
    BackendName,
    Device,
    Precision,
    default_backend,
    open_executor,
)
from snapexport.runtime.engine.rows import digest_of, row_states
from snapexport.runtime.prompt_store.folder import KeyedFolder
from snapexport.runtime.prompt_store.keeper import PromptKeeper
from snapexport.runtime.prompt_store.store import ChunkStore
from snapexport.runtime.requests.parked_rows import DEFAULT_BYTES, ParkedRows, RowFiles

_FOLDERS = "parked_rows", "parked_dir", "parked_dir_bytes", "prompt_cache", "prompt_cache_size"
PROMPT_CACHE_BYTES = 20 << 30
_LIBRARIES = {"onnxruntime-cuda": "onnxruntime", "tensorrt": ""}
"""The module of a backend's library, where it is not named like the backend; "": the manifest's
engines say its version."""


@dataclass(frozen=True, slots=True)
class LLMConfig:
    """How a build is loaded. Raises UserError for a value that can't be used.

    baseline: run the uncompressed graphs.
    threads: the CPU's; None for one a core.
    prepack: a second copy of the weights, laid out for faster decoding of one batch slot or more
    than 32.
    max_num_batched_tokens: tokens of one step, prefill and decode; None for a prefill chunk and all
    batch slots.
    backend: None takes TensorRT if the build has engines, else ONNX Runtime on the CPU.
    device, precision: of backend "openvino"; None for the CPU, and for f32.
    role: "prefill" and "decode" take only requests that hand a prompt over, or that were handed
    over.

    Where a step may take several tokens, speculates guesses further tokens from the prompt and the
    output, and checks them together where that is faster. The output stays the same.

    Where a graph extends rows, prefill "blocks" takes all prompts block by block onto a compressed
    row, in memory that does not grow with them, up to the model's own positions. parked_rows: how
    many prompts' rows are kept for prompts that begin with them, as the turns of a conversation do.
    A turn then costs its own tokens. compress_every: tokens of an output after which what left the
    ring, and the output itself, are voted on; 0: never. Both keep copies of rows in the host's
    memory, and take longer prompts than L_max too, block by block. parked_dir: a folder where
    parked rows are written as well, up to parked_dir_bytes, and found again by a later process.

    prompt_cache: a folder where prefill's caches of prompts are kept, up to prompt_cache_size
    bytes, for prompts that begin with the same tokens, in later processes too. Outputs are those of
    a fresh prefill. Prompts that fit L_max then start from there, and not from parked rows.
    """

    baseline: bool = False
    threads: int | None = None
    prepack: bool = False
    max_num_batched_tokens: int | None = None
    backend: BackendName | None = None
    prefill: Literal["chunks", "blocks"] = "chunks"
    parked_rows: int = 0
    parked_dir: Path | str | None = None
    parked_dir_bytes: int | None = None
    role: Role = "both"
    speculates: bool = True
    compress_every: int = 0
    device: Device | None = None
    precision: Precision | None = None
    prompt_cache: Path | None = None
    prompt_cache_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("parked_rows", "compress_every", "parked_dir_bytes", "prompt_cache_size"):
            if getattr(self, name) is not None:
                _require_count(name, getattr(self, name))
        require_compatible({name: getattr(self, name) for name in _FOLDERS})

    @property
    def extends_rows(self) -> bool:
        """Whether blocks follow rows that were filled before."""
        return bool(self.parked_rows or self.compress_every)

    def open(self, build: Build) -> Executor:
        """Load a build. Raises UserError."""
        build.require_run(**{field.name: getattr(self, field.name) for field in fields(self)})
        return open_executor(
            build,
            backend=self.backend,
            baseline=self.baseline,
            threads=self.threads,
            prepack=self.prepack,
            prefill="both" if self.extends_rows and self.prefill == "chunks" else self.prefill,
            role=self.role,
            speculates=self.speculates,
            device=self.device,
            precision=self.precision,
        )

    def parked(self, build: Build) -> ParkedRows | None:
        """Where rows are kept for later prompts. Raises UserError."""
        if not self.parked_rows:
            return None
        files = self.parked_dir and RowFiles(
            Path(self.parked_dir),
            digest_of(build.manifest),
            row_states(build.manifest),
            DEFAULT_BYTES if self.parked_dir_bytes is None else self.parked_dir_bytes,
        )
        return ParkedRows(self.parked_rows, files or None)

    def keeper(self, build: Build, executor: Executor) -> PromptKeeper | None:
        """The keeper of prompts on disk. Raises UserError."""
        if self.prompt_cache is None:
            return None
        assert executor.prompt_cache, "a build without one is refused"
        size = PROMPT_CACHE_BYTES if self.prompt_cache_size is None else self.prompt_cache_size
        folder = KeyedFolder(Path(self.prompt_cache), size)
        store = ChunkStore(folder, self._computed_by(build))
        return PromptKeeper(executor.prompt_cache, executor.limits.prefill, store)

    def _computed_by(self, build: Build) -> str:
        """Digest of all that decides the bits of a prompt's caches, but the machine, in hex."""
        backend = self.backend or default_backend(build)
        library, version = _LIBRARIES.get(backend, backend), ""
        if library:
            version = importlib.import_module(library).__version__
        facts = (
            build.manifest.model_dump_json(),
            backend,
            version,
            self.device or "CPU",
            self.precision or "f32",
            self.baseline,
        )
        return hashlib.sha256(repr(facts).encode()).hexdigest()


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{name} {value!r} cannot be used", f"{name} must be 0 or more")
