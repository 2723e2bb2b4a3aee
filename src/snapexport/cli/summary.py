"""What a build is, for people and for programs: geometry and memory, full against compressed."""

from collections import Counter
from typing import Any

from rich.table import Table

from snapexport.cli.console import OUT
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry, LayerGeometry
from snapexport.contract.manifest import Manifest
from snapexport.runtime.memory import cache_bytes

TOKENIZER = "tokenizer.json"
NO_TOKENIZER = (
    "none: prompts of text and `snapexport serve` need the checkpoint's tokenizer.json here"
)


def build_summary(build: Build) -> dict[str, Any]:
    """The build in a few numbers; bytes are of keys and values together."""
    manifest = build.manifest
    cache = cache_bytes(manifest)
    return {
        "build": str(build.directory),
        "model": manifest.model.model_dump(),
        "geometry": manifest.model_dump()["geometry"],
        "slots_per_layer": [layer.cache_slots for layer in manifest.geometry.layers],
        "batch": manifest.batch,
        "prefill_chunk": manifest.prefill_chunk,
        "layout": "single-shot" if manifest.single_shot else "chunked",
        "dtype": manifest.dtype,
        "quantization": manifest.quantization,
        "cache_dtype": manifest.cache_dtype,
        "decode_attention": manifest.graph_options.decode_attention,
        "top_tokens": manifest.graph_options.top_tokens,
        "target": manifest.target,
        "graphs": sorted(manifest.graphs),
        "tokenizer": (build.directory / TOKENIZER).is_file(),
        "memory": {
            "weights_bytes": sum(weights.size for weights in manifest.weights),
            "full_cache_bytes_per_request": cache.full // manifest.batch,
            "cache_bytes_per_request": cache.decode // manifest.batch,
            "compression": cache.full / cache.decode,
            "decode_caches_bytes": cache.decode,
            "prefill_cache_bytes": cache.prefill,
        },
    }


def print_summary(build: Build) -> None:
    """The same as a table."""
    summary, manifest = build_summary(build), build.manifest
    memory = summary["memory"]
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "build": summary["build"],
        "model": _model_line(manifest),
        "cache": _cache_line(manifest.geometry),
        "decode": _decode_line(manifest),
        "prefill": f"{summary['layout']}, {summary['prefill_chunk']} tokens a step",
        "sampling": _sampling_line(manifest),
        "graphs": f"{', '.join(summary['graphs'])} ({summary['target']}, {summary['dtype']})",
        "tokenizer": TOKENIZER if summary["tokenizer"] else NO_TOKENIZER,
        "weights": size(memory["weights_bytes"])
        + (f", linear layers in {manifest.quantization}" if manifest.quantization else ""),
        "one request": f"{size(memory['cache_bytes_per_request'])} of cache, the full cache "
        f"{size(memory['full_cache_bytes_per_request'])} ({memory['compression']:.1f} : 1)",
        "all slots": f"{summary['batch']} slots, {size(memory['decode_caches_bytes'])}, and "
        f"{size(memory['prefill_cache_bytes'])} for the prompt in prefill",
    }
    for name, text in rows.items():
        table.add_row(f"[bold]{name}[/]", text)
    OUT.print(table)


def _model_line(manifest: Manifest) -> str:
    model = manifest.model
    return (
        f"{model.architecture}, {model.num_hidden_layers} layers, "
        f"{model.num_attention_heads} heads over {model.num_key_value_heads} KV heads "
        f"of {model.head_dim}"
    )


def _decode_line(manifest: Manifest) -> str:
    """How the slots are held and read."""
    if not manifest.geometry.compresses:
        return f"caches in {manifest.cache_dtype}"
    attention = manifest.graph_options.decode_attention
    return f"caches in {manifest.cache_dtype}, attention over {attention} slots"


def _sampling_line(manifest: Manifest) -> str:
    """What the graphs say of the next token."""
    top_tokens = manifest.graph_options.top_tokens
    if not top_tokens:
        return "from logits"
    return f"from {top_tokens} top tokens, or from logits where these are too few"


def _cache_line(geometry: CacheGeometry) -> str:
    if geometry.policy == "full":
        return f"full: every position up to {geometry.L_max}"
    layers = Counter(geometry.layers)
    parts = ", ".join(f"{_parts(layer)}{_times(layers, layer)}" for layer in layers)
    line = f"{geometry.policy}: {parts} for prompts up to {geometry.L_max}"
    if not any(layer.K for layer in layers):
        return line
    vote = ", ".join(geometry.vote_options.values())
    return f"{line} (window {geometry.L_obs}, pool {geometry.pool_kernel}; {vote})"


def _parts(layer: LayerGeometry) -> str:
    """One layer's slots. A layer that slides has a ring alone."""
    if layer.cache_slots == layer.L_recent:
        return f"a ring of {layer.cache_slots}"
    parts = f"{layer.L_sink} sinks + {layer.L_recent} recent + {layer.K} kept"
    return f"{parts} = {layer.cache_slots} slots"


def _times(layers: Counter[LayerGeometry], layer: LayerGeometry) -> str:
    count = layers[layer]
    return f" in {count} layer{'s' if count > 1 else ''}" if len(layers) > 1 else ""


def size(nbytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"
