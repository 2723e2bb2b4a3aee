"""Summarizes a build for people and for programs: geometry and memory, full and compressed."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeVar

from snapexport.cli.console import print_rows
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import Manifest
from snapexport.contract.memory import cache_bytes, composed_attention, spelled, weights_bytes
from snapexport.contract.model_facts import LayerHeads, ModelFacts
from snapexport.contract.slots import LayerGeometry
from snapexport.methods.table import METHODS, methods_on

Kind = TypeVar("Kind")
TOKENIZER = "tokenizer.json"
NO_TOKENIZER = "none: text prompts and `snapexport serve` need the checkpoint's tokenizer.json here"

LINKED = (
    "hard links to the checkpoint's files, which ONNX Runtime and TensorRT read, but onnx.load, "
    "onnx.checker, onnx-graphsurgeon and Polygraphy refuse"
)


def build_summary(build: Build) -> dict[str, Any]:
    """For JSON: the build in a few numbers. Bytes of a cache are of keys and values together."""
    manifest = build.manifest
    cache = cache_bytes(manifest)
    return {
        "build": str(build.directory),
        "model": manifest.model.model_dump(),
        "geometry": manifest.model_dump()["geometry"],
        "slots_per_layer": [layer.cache_slots for layer in manifest.geometry.layers],
        "batch": manifest.batch,
        "prefill_chunk": manifest.prefill_chunk,
        "layout": _layout(manifest),
        "prefill_capacities": list(manifest.prefill_graphs()),
        "chunks": list(manifest.chunks),
        "dtype": manifest.dtype,
        "quantization": manifest.quantization,
        "matrices": manifest.matrices,
        "bits_per_weight": manifest.bits_per_weight,
        "adapter": manifest.adapter.name if manifest.adapter else None,
        "linked_weights": manifest.linked_weights,
        "shared_weights": bool(manifest.graph_options.share_weights),
        "cache_dtype": manifest.cache_dtype,
        "prompt_cache_dtype": manifest.graph_options.prompt_cache_dtype or manifest.dtype,
        "decode_attention": manifest.graph_options.decode_attention,
        **_of_methods(manifest),
        "tensor_parallel": manifest.tensor_parallel,
        "target": manifest.target,
        "verified": manifest.verified.model_dump() if manifest.verified else None,
        "graphs": sorted(manifest.graphs),
        "tokenizer": (build.directory / TOKENIZER).is_file(),
        "composed_attention_bytes": composed_attention(manifest.of_rank()),
        "memory": {
            "weights_bytes": weights_bytes(manifest),
            "full_cache_bytes_per_request": cache.full // manifest.batch,
            "cache_bytes_per_request": cache.decode // manifest.batch,
            "compression": cache.full / cache.decode,
            "decode_caches_bytes": cache.decode,
            "prefill_cache_bytes": cache.prefill,
        },
    }


@dataclass(frozen=True)
class CacheUse:
    """The use of a request's cache: of a KV head, the mean of all that see every position.

    positions: of the prompt and the answer. kept, slots: of them, and at most. nbytes: of the
    request's caches.
    """

    positions: int
    kept: float
    slots: float
    nbytes: int

    @classmethod
    def of(cls, manifest: Manifest, baseline: bool, positions: int) -> "CacheUse":
        """After `positions` of a build. A layer with a window of its own drops nothing more."""
        geometry = manifest.geometry.as_full() if baseline else manifest.geometry
        heads = geometry.slots.heads_held(manifest.model.kv_heads)
        all_held = [
            (heads, layer) for heads, layer in zip(heads, geometry.layers, strict=True) if heads
        ]
        held = [(n, layer) for n, layer in all_held if layer.L_sink or layer.K] or all_held
        count = sum(n for n, _ in held) or 1
        total = cache_bytes(manifest)
        return cls(
            positions,
            sum(n * layer.valid(positions - 1) for n, layer in held) / count,
            sum(n * layer.size for n, layer in held) / count,
            (total.full if baseline else total.decode) // manifest.batch * manifest.tensor_parallel,
        )

    def report(self) -> dict[str, float]:
        """For JSON."""
        return {
            "positions": self.positions,
            "kept_positions": round(self.kept, 2),
            "cache_bytes": self.nbytes,
        }

    def __str__(self) -> str:
        if not self.slots:
            return f"no position is cached, the state has {spelled(self.nbytes)}"
        if self.kept < self.positions:
            mean = "" if self.kept == int(self.kept) else " on average"
            kept = f"{self.kept:,.0f} of {self.positions:,} positions{mean}"
            return f"kept {kept}, {spelled(self.nbytes)}"
        room = f"room for {self.slots:,.0f}"
        return f"kept all {self.positions:,} positions, {spelled(self.nbytes)} ({room})"


def print_summary(build: Build) -> None:
    """Print the summary as a table."""
    summary, manifest = build_summary(build), build.manifest
    memory = summary["memory"]
    slots = "1 batch slot" if manifest.batch == 1 else f"{manifest.batch} batch slots"
    rows = {
        "build": summary["build"],
        "model": _model_line(manifest),
        "cache": _cache_line(manifest.geometry),
        "decode": _decode_line(manifest),
        "prefill": _prefill_line(manifest),
        "sampling": "from logits",
        "graphs": f"{', '.join(summary['graphs'])} ({summary['target']}, {summary['dtype']})",
        "tokenizer": TOKENIZER if summary["tokenizer"] else NO_TOKENIZER,
        "weights": _weights_line(manifest, memory["weights_bytes"]),
        "one request": f"{spelled(memory['cache_bytes_per_request'])} of cache, the full cache "
        f"{spelled(memory['full_cache_bytes_per_request'])} ({memory['compression']:.1f} : 1)",
        "all requests": f"{slots}, {spelled(memory['decode_caches_bytes'])} "
        f"of cache, and {spelled(memory['prefill_cache_bytes'])} for the prompt in prefill",
    }
    if manifest.verified:
        rows["verified"] = manifest.comparison
    for method in methods_on(manifest.geometry, manifest.graph_options):
        for title, words in method.words(manifest.geometry, manifest.graph_options).items():
            is_more = title == "prefill"
            rows[title] = f"{rows[title]}, {words}" if is_more else words
    if manifest.tensor_parallel > 1:
        own = spelled(weights_bytes(manifest.of_rank()))
        rows["ranks"] = (
            f"{manifest.tensor_parallel}, each with {own} of the weights; caches are one rank's"
        )
    if composed := summary["composed_attention_bytes"]:
        rows["attention"] = _composed_line(composed)
    print_rows(rows)


def _of_methods(manifest: Manifest) -> dict[str, Any]:
    """The facts that methods report of a build."""
    geometry, options = manifest.geometry, manifest.graph_options
    reported: dict[str, Any] = {}
    for method in METHODS:
        reported |= method.report(geometry, options)
    return reported


def _layout(manifest: Manifest) -> str:
    return "single-shot" if manifest.single_shot else "chunked"


def _prefill_line(manifest: Manifest) -> str:
    line = f"{_layout(manifest)}, {manifest.prefill_chunk} tokens a step"
    if narrow := manifest.graph_options.prompt_cache_dtype:
        line += f", cache in {narrow}"
    if short := manifest.chunks[:-1]:
        line += f", {' or '.join(map(str, short))} where that holds the rest"
    *smaller, _ = manifest.prefill_graphs()
    if smaller:
        line += f", in caches of {', '.join(map(str, smaller))} positions while they suffice"
    return line


def _model_line(manifest: Manifest) -> str:
    model = manifest.model
    attending = [layer for layer in model.layers if layer.cache_of != -1]
    heads = Counter(_heads(model, layer) for layer in attending)
    listed = ", ".join(f"{head}{_times(heads, head)}" for head in heads)
    line = f"{model.architecture}, {model.num_hidden_layers} layers, {listed}"
    if readers := len(attending) - len(model.cached):
        line += f"; {readers} read the cache of another"
    if model.stateful:
        line += f"; {len(model.stateful)} hold recurrent states"
    return line


def _heads(model: ModelFacts, layer: LayerHeads) -> str:
    """The heads of a layer."""
    key, value = layer.widths
    width = f"{key}" if key == value else f"{key} + {value}"
    held = f"latents of {width}" if model.latent else f"{layer.kv_heads} KV heads of {width}"
    return f"{layer.heads} heads over {held}"


def _weights_line(manifest: Manifest, nbytes: int) -> str:
    line = spelled(nbytes)
    if manifest.holds_integers:
        forms = ", ".join(f"{count} {form}" for form, count in manifest.matrices.items())
        line += f", {manifest.bits_per_weight:.2f} bits a weight: {forms}"
    elif manifest.quantization:
        line += f", linear layers in {manifest.quantization}"
    if manifest.adapter:
        line += f", with the adapter {manifest.adapter.name}"
    if manifest.graph_options.share_weights:
        line += ", one copy for all graphs, which take the matrices as inputs"
    return line + (f", {LINKED}" if manifest.linked_weights else "")


def _decode_line(manifest: Manifest) -> str:
    """How cache slots are stored and read."""
    line, tokens = f"caches in {manifest.cache_dtype}", manifest.geometry.steps.tokens
    if manifest.geometry.compresses:
        attention = manifest.graph_options.decode_attention if tokens == 1 else "all"
        line += f", attention over {attention} cache slots"
    return line if tokens == 1 else f"{line}, up to {tokens} tokens a step"


def _composed_line(composed: dict[str, int]) -> str:
    """The graphs without a fused attention kernel."""
    graphs = ", ".join(f"{name} ({spelled(scores)} of scores)" for name, scores in composed.items())
    return f"no fused kernel in {graphs}: composed of single operators (docs/how-to/tensorrt.md)"


def _cache_line(geometry: CacheGeometry) -> str:
    if geometry.policy == "full":
        return f"full: every position up to {geometry.L_max}"
    layers = Counter(geometry.layers)
    parts = ", ".join(f"{_parts(layer)}{_times(layers, layer)}" for layer in layers)
    if geometry.slots.head_groups:
        parts = _by_head(geometry)
    line = f"{geometry.policy}: {parts} for prompts up to {geometry.longest_prompt}"
    if not any(layer.K for layer in layers):
        return line
    who, counted = geometry.vote.words
    return f"{line} ({who}, pool {geometry.vote.pool_kernel}; {counted})"


def _by_head(geometry: CacheGeometry) -> str:
    """The caches of KV heads that keep different numbers of positions."""
    first = next(layer for layer in geometry.layers if layer.K)
    kept = sorted(layer.K for layer in geometry.layers if layer.K)
    parts = f"{first.L_sink} sinks + {first.L_recent} recent + {kept[0]} to {kept[-1]} kept by head"
    return f"{parts}, {len(kept)} caches of {len(set(kept))} sizes,"


def _parts(layer: LayerGeometry) -> str:
    """One layer's cache slots. A layer with a sliding window has only a ring."""
    if not (layer.L_sink or layer.K):
        what = f"chunks of {layer.chunk} in a ring" if layer.chunk else "a ring"
        return f"{what} of {layer.cache_slots}"
    parts = f"{layer.L_sink} sinks + {layer.L_recent} recent + {layer.K} kept"
    if layer.spare:
        parts += f" + {layer.spare} spare"
    return f"{parts} = {layer.cache_slots} cache slots"


def _times(layers: Counter[Kind], kind: Kind) -> str:
    count = layers[kind]
    return f" in {count} layer{'s' if count > 1 else ''}" if len(layers) > 1 else ""
