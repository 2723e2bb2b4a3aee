"""What a build is, for people and for programs: geometry and memory, full against compressed."""

from typing import Any

from rich.table import Table

from snapexport.commands.console import OUT
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import Manifest
from snapexport.runtime.memory import cache_bytes


def build_summary(build: Build) -> dict[str, Any]:
    """The build in a few numbers; bytes are of keys and values together."""
    manifest = build.manifest
    cache = cache_bytes(manifest)
    return {
        "build": str(build.directory),
        "model": manifest.model.model_dump(),
        "geometry": manifest.model_dump()["geometry"],
        "slots_per_layer": [layer.slots for layer in manifest.geometry.layers],
        "batch": manifest.batch,
        "prefill_chunk": manifest.prefill_chunk,
        "layout": "single-shot" if manifest.single_shot else "chunked",
        "dtype": manifest.dtype,
        "target": manifest.target,
        "graphs": sorted(manifest.graphs),
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
    summary = build_summary(build)
    memory = summary["memory"]
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "build": summary["build"],
        "model": _model_line(build.manifest),
        "cache": _cache_line(build.manifest.geometry),
        "prefill": f"{summary['layout']}, {summary['prefill_chunk']} tokens a step",
        "graphs": f"{', '.join(summary['graphs'])} ({summary['target']}, {summary['dtype']})",
        "weights": size(memory["weights_bytes"]),
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


def _cache_line(geometry: CacheGeometry) -> str:
    if geometry.policy == "full":
        return f"full: every position up to {geometry.L_max}"
    parts = f"{geometry.L_sink} sinks + {geometry.L_recent} recent + {geometry.K} kept"
    slots = sorted({layer.slots for layer in geometry.layers})
    return (
        f"{geometry.policy}: {parts} = {' or '.join(map(str, slots))} slots for prompts up to "
        f"{geometry.L_max} (window {geometry.L_obs}, pool {geometry.pool_kernel})"
    )


def size(nbytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"
