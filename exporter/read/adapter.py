"""Reads a LoRA adapter's folder, as PEFT saves it: its config, and which tensors change what.

Reads headers, never a weight. Does not know the model: `weights/adapter.py` finds its weights.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from snapexport.errors import UserError
from snapexport.exporter.read import adapter_path
from snapexport.exporter.read.folders import ADAPTER, ADAPTER_WEIGHTS, without_adapter
from snapexport.files.safetensors import TensorSpan, read_header
from snapexport.files.untrusted import CONFIG_BYTES, read_object
from snapexport.files.whole import sha256_of

_AGAIN = "copy or download the adapter again: the file is damaged or incomplete"
MERGE = (
    "merge it with peft: PeftModel.from_pretrained(BASE, ADAPTER).merge_and_unload()"
    ".save_pretrained(MERGED), and name MERGED as --model"
)
_ADDS = "it adds tokens or layers, which no weight of the model can hold: it can't be built"
_OF_PROMPTS = (
    *("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT"),
    *("ADAPTION_PROMPT", "CARTRIDGE"),
)
_ROUTED = "it depends on the text, and not only on the weights: it can't be built"
_CONVERT = (
    "its base has other weights: save it with peft's "
    "save_pretrained(FOLDER, path_initial_model_for_weight_conversion=INITIAL), which makes it a "
    "plain LoRA adapter"
)
_REFUSED = {
    "alora_invocation_tokens": _ROUTED,
    "arrow_config": _ROUTED,
    "kasa_config": MERGE,
    "layer_replication": MERGE,
    "megatron_config": MERGE,
    "monteclora_config": _ROUTED,
    "trainable_token_indices": MERGE,
    "use_bdlora": MERGE,
    "use_qalora": MERGE,
    "velora_config": MERGE,
}
"""What changes the result in ways that are not merged here, if it is given, and what to do."""
_READ = {
    *("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"),
    *(
        "peft_type",
        "target_parameters",
        "ensure_weight_tying",
        "init_lora_weights",
        "base_model_name_or_path",
    ),
}
_NEUTRAL = {
    # The tensors say what is changed, and how.
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("modules_to_save", "bias", "lora_bias", "fan_in_fan_out"),
    # Of training, or of how it began.
    *("lora_dropout", "inference_mode", "task_type", "auto_mapping", "revision", "peft_version"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size"),
    *("megatron_core", "runtime_config", "merge_weights", "enable_lora"),
}
_CHANGES_BASE = "pissa", "olora", "corda", "loftq", "lora_ga"
"""Ways to begin that take something off the base's weights."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+/@-]")
_FLOATS = "F32", "F16", "BF16"
A, B, BIAS, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_B.bias", "lora_magnitude_vector"
EMBEDDING_A, EMBEDDING_B = "lora_embedding_A", "lora_embedding_B"
_PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<path>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_B\.bias|lora_embedding_[AB]"
    r"|lora_magnitude_vector)(\.weight)?"
)
_OF_WRAPPERS = re.compile(r"\.(base_layer|modules_to_save(\.default)?)(?=\.)")
_REPLACED = ".original_module."
"""Of the base's weights that `modules_to_save` takes the place of."""


@dataclass(frozen=True)
class Adapter:
    """An adapter. base: the name of the model that it was trained on.

    name: as a build records it. sha256: of its files. changed: {path of a module: {part: tensor}},
    where `.base_layer` at a path's end stands for another parameter of the same module. replaced:
    {parameter: tensor}. parameters: names of those that are not a layer's weight
    (`target_parameters`). ties: an embedding and a head that share their weight still do.
    """

    folder: Path
    name: str
    sha256: str
    base: str
    changed: Mapping[str, Mapping[str, TensorSpan]]
    replaced: Mapping[str, TensorSpan]
    parameters: tuple[str, ...] = ()
    ties: bool = False
    _ranks: Mapping[str, Any] = field(default_factory=dict)

    def scaling(self, key: str, rank: int) -> float:
        """The factor of a module's product. Raises UserError for another rank than the config's."""
        r = _of_pattern(self._ranks["rank_pattern"], key, self._ranks["r"])
        if r != rank:
            raise UserError(
                f"{self.folder / ADAPTER} says rank {r} for {key}, its tensors have {rank}",
                "take both files of one adapter, as peft saved them",
            )
        alpha = _of_pattern(self._ranks["alpha_pattern"], key, self._ranks["lora_alpha"])
        return float(alpha / (sqrt(r) if self._ranks["use_rslora"] else r))


def open_adapter(named: str) -> Adapter:
    """Read the config and the tensors' headers of a folder, or of a Hub id.

    Raises UserError for what can't be merged.
    """
    folder = adapter_path(str(named))
    name = folder.resolve().name if folder == Path(named).expanduser() else named
    weights = folder / ADAPTER_WEIGHTS
    if not (folder / ADAPTER).is_file() or not weights.is_file():
        raise without_adapter(folder)
    config = read_object(folder / ADAPTER, CONFIG_BYTES, _AGAIN, lenient=True)
    _require_lora(folder, config)
    changed, replaced = _parts(weights)
    for path, parts in changed.items():
        _require_whole(path, parts, bool(config.get("use_dora")))
    base = str(config.get("base_model_name_or_path") or "")
    both = (sha256_of(folder / ADAPTER) + sha256_of(weights)).encode()
    return Adapter(
        folder,
        _UNSAFE.sub("-", name)[-100:] or "adapter",
        hashlib.sha256(both).hexdigest(),
        base if base.isprintable() else "",
        changed,
        replaced,
        tuple(_names(config, "target_parameters")),
        bool(config.get("ensure_weight_tying")),
        _rank_fields(config),
    )


def _require_lora(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise UserError for an adapter of another kind, and for what is not known."""
    kind = config.get("peft_type")
    if kind != "LORA":
        of_mlx = "fine_tune_type" in config or "lora_parameters" in config
        what = "of MLX" if of_mlx else f"of the kind {kind!s:.40}"
        hint = "fuse it with mlx_lm.fuse, and name the result as --model" if of_mlx else MERGE
        raise UserError(
            f"{folder} is an adapter {what}, and not LoRA of PEFT",
            _ADDS if kind in _OF_PROMPTS else hint,
        )
    begun = str(config.get("init_lora_weights")).lower()
    if begun.startswith(_CHANGES_BASE):
        raise UserError(f"the adapter {folder} began as {begun:.40} (init_lora_weights)", _CONVERT)
    for name, value in config.items():
        if not value or name in _READ | _NEUTRAL:
            continue
        known = name in _REFUSED
        raise UserError(
            f"the adapter {folder} has {'' if known else 'the unknown key '}{name!r:.60} "
            f"{json.dumps(value):.60}, which is not merged",
            _REFUSED.get(name, f"remove it from {ADAPTER} if it changes no weight; else {MERGE}"),
        )


def _rank_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {"r": config.get("r", 8), "lora_alpha": config.get("lora_alpha", 8)}
    of_patterns = {n: config.get(n) or {} for n in ("rank_pattern", "alpha_pattern")}
    for name, patterns in of_patterns.items():
        _require(name, isinstance(patterns, dict))
        found |= {f"{name} {key:.60}": value for key, value in patterns.items()}
    for name, value in found.items():
        is_rank = name.startswith("r")
        _require(name, type(value) is int or (type(value) is float and not is_rank))
        _require(name, not is_rank or value >= 1)
    for key in (*of_patterns["rank_pattern"], *of_patterns["alpha_pattern"]):
        try:
            re.compile(_ending(key))
        except re.error:
            _require(f"a pattern {key!r:.60}", False)
    return found | of_patterns | {"use_rslora": bool(config.get("use_rslora"))}


def _require(name: str, holds: bool) -> None:
    if not holds:
        raise UserError(f"{ADAPTER}: {name} has no such value as peft writes", f"correct {ADAPTER}")


def _names(config: Mapping[str, Any], name: str) -> Iterable[str]:
    value = config.get(name) or []
    _require(name, isinstance(value, list) and all(isinstance(one, str) for one in value))
    return value


def _ending(pattern: str) -> str:
    return rf"(.*\.)?({pattern})$"


def _of_pattern(patterns: Mapping[str, Any], key: str, default: Any) -> Any:
    """The value of the first pattern that is a module's path, or its end, as peft chooses it."""
    matching = (value for p, value in patterns.items() if re.match(_ending(p), key))
    return next(matching, default)


def _parts(weights: Path) -> tuple[dict[str, dict[str, TensorSpan]], dict[str, TensorSpan]]:
    """Tensors by the modules that they change, and those that take a parameter's place."""
    changed, replaced = dict[str, dict[str, TensorSpan]](), dict[str, TensorSpan]()
    for name, span in read_header(weights).items():
        own = name.removeprefix(_PREFIX)
        if span.dtype not in _FLOATS or not span.nbytes:
            raise UserError(
                f"the adapter's tensor {name} is {span.dtype} {list(span.shape)}",
                "gather its parts before it is saved (DeepSpeed, FSDP), in fp32, fp16 or bf16",
            )
        if found := _PART.fullmatch(own):
            changed.setdefault(found["path"], {})[found["part"]] = span
        elif "lora_" in own:
            raise UserError(
                f"{weights} has the tensor {name}, whose name is not one of peft's",
                "save the adapter with peft's save_pretrained",
            )
        elif _REPLACED not in own:
            replaced[_OF_WRAPPERS.sub("", own)] = span
    if not changed and not replaced:
        raise UserError(f"{weights} has no tensors", _AGAIN)
    return changed, replaced


def _require_whole(path: str, parts: Mapping[str, TensorSpan], dora: bool) -> None:
    """Raise UserError for a module whose parts are too few, too many, or of other dimensions."""
    pair = (EMBEDDING_A, EMBEDDING_B) if EMBEDDING_A in parts else (A, B)
    needed = {*pair, *((MAGNITUDE,) if dora else ())}
    lacking, more = needed - parts.keys(), parts.keys() - needed - {BIAS}
    if lacking or more:
        what = f"lacks {min(lacking)}" if lacking else f"has {min(more)} besides"
        raise UserError(f"the adapter's {path} {what}", _AGAIN)
    a, b = (parts[one].shape for one in pair)
    if len(a) != 2 or len(b) != 2:
        raise UserError(
            f"the adapter changes {path}, which is not a matrix",
            f"only linear layers, embeddings and experts are merged; {MERGE}",
        )
    sizes = {BIAS: (b[0],), MAGNITUDE: (b[0],)}
    if a[0] != b[1] or any(parts[n].shape != size for n, size in sizes.items() if n in parts):
        shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in parts.items())
        raise UserError(f"the adapter's tensors of {path} don't fit together: {shapes}", _AGAIN)
