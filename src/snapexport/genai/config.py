"""Writes genai_config.json: what onnxruntime-genai has to know of the graph and the checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import REBUILD, Manifest
from snapexport.files.untrusted import CONFIG_BYTES, read_object
from snapexport.genai.caches import PARTS, PAST, PRESENT, Caches
from snapexport.genai.functions import MOST_TOKENS
from snapexport.runtime.requests.generation_config import recommended_sampling

FILE = "genai_config.json"
MODEL = "model.onnx"
_CONFIG = "config.json"
TYPE = "decoder"
"""The model type without ways of its own: that of phi3 has rewinds that are not ours."""


def config(build: Build, caches: Caches) -> dict[str, Any]:
    """The content of genai_config.json."""
    model = build.manifest.model
    context = min(model.max_position_embeddings, MOST_TOKENS, _positions(build.manifest))
    checkpoint = read_object(build.directory / _CONFIG, CONFIG_BYTES, REBUILD, links=False)
    eos = model.eos_token_id
    return {
        "model": {
            "type": TYPE,
            "context_length": context,
            "vocab_size": model.vocab_size,
            "bos_token_id": _token(checkpoint, "bos_token_id", 0),
            "eos_token_id": eos,
            "pad_token_id": _token(checkpoint, "pad_token_id", eos[0] if eos else 0),
            "decoder": _decoder(build, caches),
        },
        "search": _sampling(build.directory)
        | {
            "batch_size": 1,
            "num_beams": 1,
            "max_length": context,
            "past_present_share_buffer": True,
        },
    }


def _positions(manifest: Manifest) -> int:
    """The longest context: after fewer positions of a full cache a whole block fits."""
    if manifest.geometry.compresses:
        return MOST_TOKENS
    return manifest.geometry.L_max - manifest.prefill_chunk + 1


def _decoder(build: Build, caches: Caches) -> dict[str, Any]:
    """Heads and widths are those of the first layer; genai reads other layers' from the graph."""
    first = caches.places[0].shape
    key, value = (f"%d.{part}" for part in PARTS)
    return {
        "filename": MODEL,
        "session_options": _session(build) | {"provider_options": []},
        "num_hidden_layers": caches.layers,
        "num_attention_heads": build.manifest.model.layer(0).heads,
        "num_key_value_heads": first[1],
        "head_size": first[3],
        "inputs": {
            "input_ids": names.INPUT_IDS,
            "position_ids": names.POSITION_IDS,
            "past_key_names": f"{PAST}.{key}",
            "past_value_names": f"{PAST}.{value}",
        },
        "outputs": {
            "logits": names.LOGITS,
            "present_key_names": f"{PRESENT}.{key}",
            "present_value_names": f"{PRESENT}.{value}",
        },
    }


def _session(build: Build) -> dict[str, str]:
    """Integer weights are slow without packing; packed floats are a second copy in memory."""
    packs = build.manifest.holds_integers
    return {} if packs else {"session.disable_prepacking": "1"}


def _sampling(directory: Path) -> dict[str, Any]:
    """The checkpoint's recommendation; without a temperature, the likeliest token.

    All that is not recommended is off, as in our runtime: genai's own default is the 50 likeliest.
    It has no min_p.
    """
    given = recommended_sampling(directory)
    given.pop("min_p", None)
    return {"do_sample": given.get("temperature", 0) > 0, "top_k": 0, "top_p": 1.0} | given


def _token(config: Mapping[str, Any], name: str, default: int) -> int:
    found = config.get(name)
    found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, int) else default
