"""Reads and writes manifest.json, the contract between a build and what runs it.

An unknown key is an error, since it could mean a graph that this version would run wrongly. The
digest in `manifest.json.sha256` (format of `sha256sum --check`) shows damage. It does not show
forgery: who writes a manifest can write its digest.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from snapexport.contract.engines import EngineEntry, FileName, Strict, Title, Word
from snapexport.contract.graph_kinds import graph_kinds, graph_of, require_graph_name
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.records import RecordedGeometry, RecordedOptions
from snapexport.contract.targets import Target, capabilities
from snapexport.errors import UserError
from snapexport.files.dtypes import BY_NUMPY, CacheDType, DType
from snapexport.files.nearby import did_you_mean, folders_with, near
from snapexport.files.untrusted import MANIFEST_BYTES, parse_object, read_bytes
from snapexport.files.whole import write_whole

FORMAT_VERSION = 17
MANIFEST = "manifest.json"
DIGEST = "manifest.json.sha256"

Quantization = Literal["keep", "int8", "int4", "fp8"]
WEIGHTS = "weights"
"""A build's folder of weights."""
RANK = "rank"
"""rank{r} is the folder of a rank's graphs and weights, where a build has several ranks."""
GraphName = Annotated[str, AfterValidator(require_graph_name)]
"""NAME, NAME.N, NAME.cM or baseline-NAME of a kind of graph (`contract/graph_kinds.py`)."""
TraceName = Literal["prefill", "decode"]

_DIGEST_BYTES = 1 << 12
_LARGEST = 1 << 40
"""No count, size or dimension of a model is larger."""
REBUILD = "build it again with `snapexport build`"


def _require_type(dtype: str) -> str:
    if dtype not in BY_NUMPY:
        raise ValueError(f"{dtype!r:.100} is not a type of a tensor")
    return dtype


class TensorSpec(Strict):
    """One graph input or output: `dtype` as NumPy spells it ("bfloat16" for bf16)."""

    name: str
    dtype: Annotated[str, AfterValidator(_require_type)]
    shape: list[Annotated[int, Field(ge=0, le=_LARGEST)]]


class GraphEntry(Strict):
    """One ONNX file of the build."""

    file: FileName
    sha256: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]


class WeightFile(Strict):
    """One .safetensors file: a weight, or a shard of the checkpoint where `linked_weights`.

    sha256: of the whole file; None where it was neither known nor cheap to compute.
    """

    file: FileName
    size: NonNegativeInt
    header_sha256: str
    sha256: str | None


class Verified(Strict):
    """The comparison of a small decoder with transformers: some of the checkpoint's layers.

    layers: their indices. miniature: the decoder had small sizes and random weights, since the
    checkpoint's own layers are too large. target: that the graphs were made for. tokens: of the
    prompt. chunks: that prefill took it in. decode_steps: after it, with the full cache.
    kept_positions: that the vote chose, of all layers and KV heads. far_position: of the token that
    was decoded with the compressed cache. largest_difference: of logits, as a share of the
    reference's standard deviation.
    """

    transformers: Word
    target: Target
    layers: list[NonNegativeInt]
    miniature: bool
    tokens: PositiveInt
    chunks: PositiveInt
    decode_steps: PositiveInt
    kept_positions: NonNegativeInt
    far_position: PositiveInt
    largest_difference: NonNegativeFloat


class AdapterEntry(Strict):
    """The LoRA adapter that is merged into the weights. sha256: of its files."""

    name: Title
    sha256: str


class Manifest(Strict):
    """Everything that a run needs to know of a build.

    quantization: of the linear layers' weights; None: they have the build's dtype. keep: those that
    the checkpoint has as integers are stored so; fp8: those that it has in fp8.
    matrices: how many matrices have each form. bits_per_weight: of all matrices, with their scales.
    graph_options: cache_dtype null: the build's dtype, which full caches always have.
    decode_attention valid: decode has the outputs attended.{l}.key|value, which have to be bound to
    the buffers of the cache inputs.
    traces: the traces that the graphs were made from, if the build has a baseline. They hold
    markers for attention and cannot run; surgery makes graphs of other caches from them.
    tensor_parallel: ranks that the model is cut for. If there are several, each has its graphs and
    weights in a folder `rank{r}`. Graphs are the same in all of them. Inputs and outputs are one
    rank's, and `model` is the whole.
    segments: of each graph that is cut at its collectives, in their order.
    linked_weights: weight files are hard links to the checkpoint's. ONNX Runtime and TensorRT read
    them; the package onnx refuses files with more than one link.
    engines: engines that `snapexport engine` added, by the name of their folder in `engines/`.
    verified: what was compared with transformers before the build; absent where nothing was.
    adapter: absent without one.
    """

    format_version: int
    model: ModelFacts
    geometry: RecordedGeometry
    batch: Annotated[int, Field(ge=1, le=1 << 20)]
    prefill_chunk: Annotated[int, Field(ge=1, le=_LARGEST)]
    dtype: DType
    quantization: Quantization | None
    target: Target
    graph_options: RecordedOptions
    graphs: dict[GraphName, GraphEntry]
    traces: dict[TraceName, GraphEntry]
    tensor_parallel: Annotated[int, Field(ge=1, le=1 << 10)]
    segments: dict[GraphName, list[GraphEntry]]
    weights: list[WeightFile]
    linked_weights: bool
    engines: dict[Word, EngineEntry]
    versions: dict[Word, Word]
    verified: Verified | None = None
    adapter: AdapterEntry | None = None
    matrices: dict[Word, PositiveInt] = Field(default_factory=dict)
    bits_per_weight: PositiveFloat | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Refuse numbers of layers and ranks that no graph's inputs could follow from."""
        model, slots = self.model, self.geometry.slots
        layers = model.num_hidden_layers
        if not layers == slots.num_layers == len(model.sliding_window):
            raise ValueError(
                f"the model has {layers} layers, its geometry {slots.num_layers}, and "
                f"{len(model.sliding_window)} have windows"
            )
        if slots.cache_of != (model.cache_of or ()):
            raise ValueError("the geometry shares other caches than the model")
        counts = [model.vocab_size, *(layer.heads for layer in model.layers)]
        counts += () if model.latent else model.kv_heads
        if any(count % self.tensor_parallel for count in counts):
            raise ValueError(f"the model cannot be cut for {self.tensor_parallel} ranks")
        return self

    @property
    def holds_integers(self) -> bool:
        """Whether weights are stored as integers."""
        return self.quantization in ("keep", "int8", "int4")

    @property
    def rounds_activations(self) -> bool:
        """Whether products are of integers, with activations that are rounded to 8 bits."""
        return self.holds_integers and not capabilities(self.target).signed_integers

    @property
    def holds_fp4(self) -> bool:
        """Whether weights are stored as floats of 4 bits."""
        return any(form.startswith("fp4") for form in self.matrices)

    @property
    def comparison(self) -> str:
        """A sentence about the comparison with transformers when the build was made."""
        found = self.verified
        if found is None:
            return "not compared with transformers when it was built, since tests hold its family"
        compared = "of a small model of its config " if found.miniature else ""
        line = (
            f"{len(found.layers)} of {self.model.num_hidden_layers} layers {compared}compared with "
            f"transformers {found.transformers}: logits differ by at most "
            f"{found.largest_difference:.1e} of their standard deviation"
        )
        return line + ("" if found.target == self.target else f", on the target {found.target}")

    @property
    def folders(self) -> list[str]:
        """The folders of the ranks; "" for the build's own if there is one rank."""
        ranks = self.tensor_parallel
        return [f"{RANK}{rank}" for rank in range(ranks)] if ranks > 1 else [""]

    def of_rank(self, rank: int = 0) -> "Manifest":
        """A rank's part, as a build of its own in the rank's folder."""
        if self.tensor_parallel == 1:
            return self
        start = f"{self.folders[rank]}/"
        own = [weight for weight in self.weights if weight.file.startswith(start)]
        weights = [
            weight.model_copy(update={"file": weight.file.removeprefix(start)}) for weight in own
        ]
        model = self.model.cut(self.tensor_parallel)
        return self.model_copy(update={"tensor_parallel": 1, "model": model, "weights": weights})

    def decode_graphs(self, prefix: str = "") -> dict[int, GraphName]:
        """{batch slots: decode graph}, ascending. prefix: BASELINE or ""."""
        return self._smaller(f"{prefix}decode") | {self.batch: f"{prefix}decode"}

    def verify_graphs(self) -> dict[int, GraphName]:
        """{batch slots: graph that checks drafts}, ascending; none where no step takes several."""
        kinds = (kind.name for kind in graph_kinds().values() if kind.checks_drafts)
        name = next((name for name in kinds if name in self.graphs), None)
        return self._smaller(name) | {self.batch: name} if name else {}

    def prefill_graphs(self, prefix: str = "", tokens: int = 0) -> dict[int, GraphName]:
        """{positions of its cache: prefill graph}, ascending. prefix: BASELINE or "".

        tokens: of a short chunk; 0: `prefill_chunk`.
        """
        whole = f"{prefix}prefill" + f".c{tokens}" * bool(tokens)
        return self._smaller(f"{prefix}prefill", tokens) | {self.geometry.L_max: whole}

    @property
    def chunks(self) -> tuple[int, ...]:
        """Tokens of the chunks that graphs take a prompt in, ascending; `prefill_chunk` is last."""
        short = {graph_of(name).tokens for name in self.graphs} - {0}
        return (*sorted(short), self.prefill_chunk)

    @property
    def extends_rows(self) -> bool:
        """Whether a graph takes tokens onto a compressed row."""
        return any(graph_of(name).kind.extends_rows for name in self.graphs)

    def _smaller(self, name: GraphName, tokens: int = 0) -> dict[int, GraphName]:
        """{N: graph} of each graph name.N, ascending."""
        whole = graph_of(name)
        sizes = {n: graph_of(n) for n in self.graphs}
        found = {
            graph.size: n
            for n, graph in sizes.items()
            if graph.size and graph == replace(whole, size=graph.size, tokens=tokens)
        }
        return dict(sorted(found.items()))

    @property
    def cache_dtype(self) -> CacheDType:
        """The element type of compressed caches."""
        return self.graph_options.cache_dtype or self.dtype

    @property
    def single_shot(self) -> bool:
        """Whether prefill takes the whole padded prompt in one step and compresses in its graph."""
        return self.geometry.is_single_shot(self.prefill_chunk)

    def write(self, directory: Path) -> None:
        """Write or replace the manifest. A kill leaves either the old or the new one, valid."""
        absent = {name for name in ("verified", "adapter") if getattr(self, name) is None}
        text = self.model_dump_json(indent=2, exclude=absent) + "\n"
        digest = f"{hashlib.sha256(text.encode()).hexdigest()}  {MANIFEST}\n"
        path = directory / DIGEST
        former = path.read_text() if path.is_file() else ""
        write_whole(path, digest + former)
        write_whole(directory / MANIFEST, text)
        write_whole(path, digest)

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read and check the manifest; `Build.open` checks the files that it names."""
        raw = _read_bytes(directory)
        _check_format_version(parse_object(raw, directory / MANIFEST, REBUILD))
        try:
            manifest = cls.model_validate_json(raw)
        except ValidationError as error:
            raise UserError(
                f"{directory / MANIFEST} is not valid: {_first(error)}", REBUILD
            ) from None
        _check_digest(directory, raw)
        return manifest


def no_build(directory: Path) -> UserError:
    """The error for a directory without a manifest."""
    why = f"it has no {MANIFEST}" if directory.exists() else "there is none of this name"
    is_model = directory.suffix == ".gguf" or (directory / "config.json").is_file()
    inside, beside = folders_with(directory, MANIFEST), folders_with(directory.parent, MANIFEST)
    found = near(directory, MANIFEST) or (inside + (beside if len(beside) == 1 else []) + [None])[0]
    how = f"snapexport build --model {directory if is_model else 'DIR'} --L-max N --out DIR"
    return UserError(
        f"{directory} is not a build directory: {why}",
        f"{'' if is_model else did_you_mean(found)}make one with `{how}`",
    )


def _read_bytes(directory: Path) -> bytes:
    try:
        return read_bytes(directory / MANIFEST, MANIFEST_BYTES, REBUILD, links=False)
    except (FileNotFoundError, NotADirectoryError):
        raise no_build(directory) from None


def _check_format_version(fields: dict[str, object]) -> None:
    version = fields.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            f"the build's format_version is {version}; this snapexport reads {FORMAT_VERSION}",
            "upgrade snapexport, or " + REBUILD,
        )
    if version != FORMAT_VERSION:
        raise UserError(f"the build's format_version {version!r} is not {FORMAT_VERSION}", REBUILD)


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key '{where}'"
    what = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {what[0].lower()}{what[1:]}" if where else what


def _check_digest(directory: Path, raw: bytes) -> None:
    try:
        path = directory / DIGEST
        recorded = read_bytes(path, _DIGEST_BYTES, REBUILD, links=False).split()[::2]
    except FileNotFoundError:
        raise UserError(f"{directory / DIGEST} is missing", REBUILD) from None
    if hashlib.sha256(raw).hexdigest().encode() not in recorded:
        raise UserError(f"{directory / MANIFEST} was changed after the build", REBUILD)
