"""Checks that a manifest's numbers, texts and file names are harmless, before they are used.

Numbers size buffers, texts reach a Dockerfile and a README, file names are opened. Does not know
the files themselves.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from snapexport.contract.engines import ENGINES, EngineEntry, EngineFile
from snapexport.contract.exclusions import Facts, require_compatible
from snapexport.contract.manifest import REBUILD, WEIGHTS, Manifest
from snapexport.errors import UserError
from snapexport.files.dtypes import BY_NUMPY
from snapexport.files.untrusted import is_plain_name

_POSITIONS = (1 << 31) - 1
_BYTES = 1 << 50
_RANKS = 1024
_NUMBERS = {
    "num_hidden_layers": (1, 1 << 12),
    "num_attention_heads": (1, 1 << 14),
    "num_key_value_heads": (1, 1 << 14),
    "head_dim": (1, 1 << 14),
    "kv_lora_rank": (0, 1 << 14),
    "qk_nope_head_dim": (0, 1 << 14),
    "v_head_dim": (0, 1 << 14),
    "num_experts": (0, 1 << 16),
    "vocab_size": (1, 1 << 24),
    "max_position_embeddings": (1, _POSITIONS),
}
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,100}")
_TITLE = re.compile(r"[A-Za-z0-9_.+ ()/@-]{1,100}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def require_closed(manifest: Manifest) -> None:
    """Raise UserError for a number out of range, a text that is none, or a name that leads away."""
    _require_numbers(manifest)
    _require_layers(manifest)
    _require_texts(manifest)
    _require_ranks(manifest)
    segments = [entry for entries in manifest.segments.values() for entry in entries]
    graphs = (*manifest.graphs.values(), *manifest.traces.values(), *segments)
    _require_names([entry.file for entry in graphs], parts=1)
    weights = [weight.file for weight in manifest.weights]
    _require_names(_in_folders(manifest, weights), parts=2, folder=WEIGHTS)
    if len(set(weights)) < len(weights):
        raise UserError("the manifest names a weight file twice", REBUILD)
    for entry in graphs:
        _require_hash(entry.file, entry.sha256)
    for weight in manifest.weights:
        _require_range(f"the size of {weight.file}", weight.size, 0, _BYTES)
        _require_hash(weight.file, weight.header_sha256)
        if weight.sha256 is not None:
            _require_hash(weight.file, weight.sha256)
    for name, engine in manifest.engines.items():
        _require_engine(name, engine)
    _require_options(manifest)


def _require_numbers(manifest: Manifest) -> None:
    model, geometry = manifest.model, manifest.geometry
    for name, (least, most) in _NUMBERS.items():
        _require_range(f"model.{name}", getattr(model, name), least, most)
    _require_range("geometry.L_max", geometry.L_max, 1, model.max_position_embeddings)
    _require_range("batch", manifest.batch, 1, 1 << 16)
    least = geometry.vote.L_obs if geometry.compresses else 1
    _require_range("prefill_chunk", manifest.prefill_chunk, least, geometry.L_max)
    geometry.require_chunks(manifest.prefill_chunk)
    _require_range("geometry.pool_kernel", geometry.vote.pool_kernel, 1, _POSITIONS)
    _require_range("top_tokens", manifest.graph_options.top_tokens, 0, model.vocab_size)
    for layer in geometry.layers:
        _require_range("geometry.K", layer.K, 0, geometry.L_max)
        for value in (layer.L_sink, layer.L_recent):
            _require_range("geometry.L_sink or L_recent", value, 0, _POSITIONS)
    for token in model.eos_token_id:
        _require_range("model.eos_token_id", token, 0, model.vocab_size - 1)
    segments = [entry for entries in manifest.segments.values() for entry in entries]
    for entry in (*manifest.graphs.values(), *manifest.traces.values(), *segments):
        for spec in (*entry.inputs, *entry.outputs):
            _require_spec(spec.name, spec.dtype, spec.shape)


def _require_ranks(manifest: Manifest) -> None:
    """What is cut has equal parts, and nothing is there that several ranks don't have."""
    ranks, model = manifest.tensor_parallel, manifest.model
    _require_range("tensor_parallel", ranks, 1, _RANKS)
    heads = [model.num_attention_heads, model.vocab_size]
    heads += [] if model.kv_lora_rank else [model.num_key_value_heads]
    if any(count % ranks for count in heads):
        raise UserError(f"the manifest's model cannot be cut for {ranks} ranks", REBUILD)
    if ranks > 1 and manifest.engines:
        raise UserError("the manifest has several ranks, and engines", REBUILD)
    batches = manifest.decode_graphs()
    manifest.graph_options.require_ranks(ranks, batches, latent=bool(model.kv_lora_rank))


def _in_folders(manifest: Manifest, files: Iterable[str]) -> Iterator[str]:
    """Names of files inside the folder of a rank."""
    if manifest.tensor_parallel == 1:
        yield from files
        return
    for file in files:
        folder, _, name = file.partition("/")
        if folder not in manifest.folders:
            raise UserError(f"the manifest names {file!r:.200}, which is of no rank", REBUILD)
        yield name


def _require_spec(name: str, dtype: str, shape: list[int]) -> None:
    if dtype not in BY_NUMPY:
        raise UserError(f"the manifest has {name!r:.200} of the type {dtype!r:.50}", REBUILD)
    if len(shape) > 8 or not all(0 < size < 1 << 31 for size in shape):
        raise UserError(f"the manifest has {name!r:.200} of the shape {shape!r:.100}", REBUILD)


def _require_layers(manifest: Manifest) -> None:
    """Compare what the model and the geometry say of each layer."""
    model, geometry = manifest.model, manifest.geometry
    layers = model.num_hidden_layers
    if not layers == geometry.slots.num_layers == len(model.sliding_window):
        raise UserError(
            f"the manifest's model has {layers} layers, its geometry {geometry.slots.num_layers}, "
            f"and {len(model.sliding_window)} have windows",
            REBUILD,
        )
    if model.num_attention_heads % model.num_key_value_heads:
        raise UserError(
            f"the manifest's {model.num_attention_heads} heads are no multiple of its "
            f"{model.num_key_value_heads} KV heads",
            REBUILD,
        )
    if model.kv_lora_rank:
        _require_range("model.kv_lora_rank", model.kv_lora_rank, 1, model.head_dim - 1)
        _require_range("model.num_key_value_heads", model.num_key_value_heads, 1, 1)
        _require_range("model.qk_nope_head_dim", model.qk_nope_head_dim, 1, 1 << 14)
        _require_range("model.v_head_dim", model.v_head_dim, 1, 1 << 14)
    for one, layer in zip(geometry.slots.caches, geometry.layers, strict=True):
        window = model.sliding_window[one.layer]
        _require_range("model.sliding_window", window, 0, _POSITIONS)
        ring = (layer.L_sink, layer.L_recent, layer.K)
        if geometry.compresses and window and ring != (0, window, 0):
            raise UserError(
                f"the manifest's layer {one.layer} slides over {window} positions, and its cache "
                f"has {ring[0]} + {ring[1]} + {ring[2]} slots",
                REBUILD,
            )
    _require_head_groups(manifest)


def _require_head_groups(manifest: Manifest) -> None:
    model, groups = manifest.model, manifest.geometry.slots.head_groups
    if not groups:
        return
    if sum(map(len, groups[0])) != model.num_key_value_heads:
        raise UserError(
            f"the manifest's head groups are not of {model.num_key_value_heads} KV heads", REBUILD
        )
    if not manifest.geometry.compresses:
        raise UserError("the manifest's head groups are not those of a build", REBUILD)


def _require_options(manifest: Manifest) -> None:
    """The graph options are resolved, so they are what they resolve to."""
    options, model = manifest.graph_options, manifest.model
    options.require_model(model.vocab_size, latent=bool(model.kv_lora_rank))
    require_compatible(_facts(manifest))
    resolved = options.resolved(manifest.target, manifest.dtype)
    if not manifest.geometry.compresses:
        resolved = resolved.of_full_cache()
    if resolved != options:
        raise UserError(
            f"the manifest's graph options {options!r:.200} are not those of a build", REBUILD
        )


def _facts(manifest: Manifest) -> Facts:
    """What the table of exclusions asks about."""
    geometry, queries = manifest.geometry, manifest.geometry.vote.vote_queries
    return (
        vars(manifest.graph_options)
        | {
            "policy": geometry.policy,
            "weights": manifest.quantization,
            "target": manifest.target,
            "dtype": manifest.dtype,
            "tensor_parallel": manifest.tensor_parallel,
            "tokens_per_step": geometry.steps.tokens_per_step,
            "baseline": bool(manifest.traces),
            "head_budget": bool(geometry.slots.head_groups),
            "link_weights": manifest.linked_weights,
            "latent": bool(manifest.model.kv_lora_rank),
        }
        | ({} if queries == "prompt" else {"vote_queries": queries})
    )


def _require_texts(manifest: Manifest) -> None:
    _require_text("model.architecture", manifest.model.architecture)
    for name, version in manifest.versions.items():
        _require_text("versions", name)
        _require_text(f"versions.{name}", version)


def _require_engine(name: str, engine: EngineEntry) -> None:
    _require_text("engines", name)
    _require_text(f"engines.{name}.version", engine.version)
    for capability in engine.compute_capabilities:
        _require_text(f"engines.{name}.compute_capabilities", capability)
    if engine.gpu is not None:
        _require_text(f"engines.{name}.gpu", engine.gpu, _TITLE)
    for file in _engine_files(engine):
        _require_names([file.file], parts=3, folder=ENGINES)
        _require_hash(file.file, file.sha256)
        _require_range(f"the size of {file.file}", file.size, 0, _BYTES)
    for graph in engine.graphs:
        _require_text(f"engines.{name}.graphs", graph)


def _engine_files(engine: EngineEntry) -> Iterator[EngineFile]:
    yield from engine.graphs.values()
    if engine.plugins:
        yield engine.plugins


def _require_names(files: Iterable[str], parts: int, folder: str = "") -> None:
    """Names of files in the build, or in a folder of it."""
    for file in files:
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts:
            raise UserError(
                f"the manifest names {file!r:.200}, which is outside of the build", REBUILD
            )
        pieces = file.split("/")
        plain = all(is_plain_name(piece) and piece.isprintable() for piece in pieces)
        if not plain or len(pieces) != parts or (folder and pieces[0] != folder):
            raise UserError(
                f"the manifest names {file!r:.200}, which is no place of a build's file", REBUILD
            )


def _require_text(what: str, text: str, allowed: re.Pattern[str] = _WORD) -> None:
    if not allowed.fullmatch(text):
        raise UserError(f"the manifest has {text!r:.100} for {what!r:.100}", REBUILD)


def _require_hash(file: str, digest: str) -> None:
    if not _SHA256.fullmatch(digest):
        raise UserError(f"the manifest's hash of {file} is none: {digest!r:.100}", REBUILD)


def _require_range(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(f"the manifest's {what} is {value}, not from {least} to {most}", REBUILD)
