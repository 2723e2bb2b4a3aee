"""The rules of a build: flags of `build` and `plan` that exclude each other.

Those of a cache method are in its `spec.py`. Facts are flags by field, and of the model: those of
`ModelFacts.features`; `gguf`, `quantized`, `attention_sinks`, `mlp_bias`, `other_family`;
`CacheGeometry.chunk_facts` adds those of prefill's chunks, and `uneven_slots` are batch slots that
ranks cannot share equally.
"""

from collections.abc import Callable

from snapexport.contract.policies import PRESETS
from snapexport.contract.rule import (
    BASELINE,
    CHUNKED,
    FULL,
    IRREGULAR,
    KEEPS_ALL,
    LATENT,
    LEAVE_OUT,
    NARROW_PROMPT,
    NO_TOPK,
    RANKS,
    SINGLE_SHOT,
    STREAMING,
    WIDTHS,
    Choice,
    Facts,
    Rule,
    fact,
    flag,
    some,
    value,
)
from snapexport.contract.targets import TARGETS, TargetCapabilities, capabilities, targets_with
from snapexport.errors import flag_of


def _targets(lacks: Callable[[TargetCapabilities, Facts], bool], text: str = "") -> Choice:
    """Targets whose record lacks something."""
    return Choice(
        f"--target {{target}}{text}",
        {},
        lambda f: "target" in f and lacks(capabilities(f["target"]), f),
    )


FP8 = value("weights", "fp8")
INTEGERS = Choice(
    "--weights {weights}",
    {"weights": "int4"},
    lambda f: f.get("weights") in ("keep", "int8", "int4"),
)
QUANTIZED = Choice(
    "--weights {weights}",
    {"weights": "int4"},
    lambda f: f.get("weights") not in (None, "dequantize"),
)
SHARED, LINKED = flag("share_weights"), flag("link_weights")
STORED = Choice(
    "--cache-dtype {cache_dtype}",
    {"cache_dtype": "int8", "dtype": "fp32"},
    lambda f: f.get("cache_dtype") not in (None, f.get("dtype")),
)
FP16_CACHE = Choice(
    "--cache-dtype fp16",
    {"cache_dtype": "fp16", "dtype": "fp32"},
    lambda f: f.get("cache_dtype") == "fp16" != f.get("dtype"),
)
VALID = Choice(
    "--decode-attention valid",
    {"decode_attention": "valid"},
    lambda f: f.get("decode_attention") == "valid" and f.get("cache_dtype") != "int8",
)
CAPACITIES = some("--prefill-capacities", "prefill_capacities", (64,))
KEPT = some("--K {K}", "K", 16)
KV_HEADS = fact("attention with KV heads", "latent", value=False, joined="for")
SHARED_SLOTS = flag("data_parallel_attention")
NO_RANKS = fact("--tensor-parallel", "tensor_parallel", value=1, joined="without")
UNEVEN = some("{uneven_slots} batch slots", "uneven_slots", 3)
UNCUT = (
    fact("GGUF files", "gguf", joined="for"),
    fact("quantized checkpoints", "quantized", joined="for"),
    fact("models with attention sinks", "attention_sinks", joined="for"),
    fact("models with biases in their MLPs", "mlp_bias", joined="for"),
    IRREGULAR,
    fact("model families that were not tested with it", "other_family", joined="for"),
)

_VOTES = {
    "vote": "sum",
    "pool": "max",
    "softmax": "causal",
    "group": "max",
    "budget": "pyramid",
    "vote_queries": "prompt",
}
_SIZES = {"kv_budget": 64, "L_sink": 4, "L_recent": 32, "K": 16, "L_obs": 8, "pool_kernel": 7}
_ANOTHER = {"L_sink": 4, "L_obs": 8, "pool_kernel": 7, "softmax": "candidates"}
_OF_COMPRESSED = "the full cache has one form, and prefill extends it"


def _fixed_by(policy: str, field: str, fixed: int | str) -> Rule:
    """A policy that fixes a field, beside another value of it."""
    other = Choice(
        f"{flag_of(field)} {{{field}}}",
        {field: _ANOTHER[field]},
        lambda f: f.get(field) not in (None, fixed),
    )
    return Rule(
        other,
        value("policy", policy),
        f"--policy {policy} means {flag_of(field)} {fixed}",
        f"drop {flag_of(field)}, or use --policy snapstream",
    )


def _cache_dtypes() -> str:
    return "; ".join(
        f"--target {name}: {', '.join(record.cache_dtypes)}"
        for name, record in TARGETS.items()
        if record.cache_dtypes
    )


def _integer_dtypes() -> str:
    return "; ".join(
        f"--target {name} --dtype {' or '.join(record.integer_dtypes)}"
        for name, record in TARGETS.items()
        if record.integer_dtypes
    )


BUILD_RULES: tuple[Rule, ...] = (
    # Weights.
    Rule(
        FP8,
        _targets(lambda target, f: not target.fp8_weights),
        "the CPU would dequantize every matrix anew in each run",
        "leave it out, and the weights are dequantized once, as they are written; or use "
        f"--target {targets_with('fp8_weights')}",
    ),
    Rule(
        INTEGERS,
        _targets(lambda target, f: f.get("dtype") not in target.integer_dtypes, " --dtype {dtype}"),
        "",
        f"use one of these: {_integer_dtypes()}",
    ),
    Rule(
        SHARED,
        INTEGERS,
        "quantized weights are rearranged, or multiplied as they are stored, only in the graphs",
    ),
    Rule(
        SHARED,
        FP8,
        "an engine would convert all of them to 32 bits at the start of each run, and hold that",
    ),
    *(
        Rule(LINKED, choice, "quantized and merged weights are new files")
        for choice in (INTEGERS, flag("adapter", "DIR"))
    ),
    # Caches.
    Rule(
        FP16_CACHE,
        VALID,
        "ONNX Runtime's operator for valid slots takes longer over fp16 than over fp32",
        "drop one of them, or use --cache-dtype int8",
    ),
    Rule(
        STORED,
        _targets(
            lambda target, f: (
                f.get("dtype") != "fp32" or f.get("cache_dtype") not in target.cache_dtypes
            ),
            " --dtype {dtype}",
        ),
        "",
        f"leave it out, or use --dtype fp32 and one of these: {_cache_dtypes()}",
    ),
    Rule(
        VALID,
        _targets(lambda target, f: not target.valid_slots),
        "",
        f"leave it out, or use --target {targets_with('valid_slots')}",
    ),
    Rule(VALID, LATENT, "ONNX Runtime has no operator for it", LEAVE_OUT),
    Rule(VALID, WIDTHS, "ONNX Runtime's operator for valid slots takes none", LEAVE_OUT),
    Rule(
        CAPACITIES,
        _targets(lambda target, f: not target.attends_to_capacity),
        "its attention reads a prompt no further than it is long",
        f"leave it out, or use --target {targets_with('attends_to_capacity')}",
    ),
    # Policies and votes.
    Rule(STORED, FULL, _OF_COMPRESSED, "leave it out: the full cache has the build's dtype"),
    Rule(VALID, FULL, _OF_COMPRESSED, LEAVE_OUT),
    Rule(BASELINE, FULL, "its graphs are the baseline's already"),
    *(
        Rule(flag(field, example), FULL, KEEPS_ALL, LEAVE_OUT)
        for field, example in (_SIZES | _VOTES).items()
    ),
    *(
        Rule(flag(field, example), STREAMING, NO_TOPK, LEAVE_OUT)
        for field, example in _VOTES.items()
    ),
    Rule(KEPT, STREAMING, NO_TOPK, LEAVE_OUT),
    *(
        _fixed_by(policy, field, fixed)
        for policy, fields in PRESETS.items()
        for field, fixed in fields.items()
        if field != "K"  # KEPT
    ),
    # The prompt's cache in fewer bits.
    Rule(
        NARROW_PROMPT,
        _targets(
            lambda target, f: f.get("dtype") != "fp32" or not target.valid_slots,
            " --dtype {dtype}",
        ),
        "other attention would convert the whole cache in each chunk",
        "leave it out, or use --target onnxruntime --dtype fp32",
    ),
    Rule(NARROW_PROMPT, FULL, "a prompt's cache is copied into the batch slot", LEAVE_OUT),
    Rule(NARROW_PROMPT, SINGLE_SHOT, "a single shot has no cache of the prompt", LEAVE_OUT),
    *(
        Rule(
            NARROW_PROMPT,
            model,
            "ONNX Runtime's operator for chunks takes no such cache",
            LEAVE_OUT,
        )
        for model in (LATENT, WIDTHS, CHUNKED)
    ),
    # Ranks.
    *(Rule(choice, RANKS, "") for choice in (QUANTIZED, BASELINE, LINKED)),
    *(Rule(RANKS, model, "", LEAVE_OUT) for model in UNCUT),
    Rule(SHARED_SLOTS, KV_HEADS, "each rank has KV heads of its own", LEAVE_OUT),
    Rule(SHARED_SLOTS, NO_RANKS, "it is for latent attention with --tensor-parallel", LEAVE_OUT),
    Rule(
        SHARED_SLOTS,
        UNEVEN,
        "each rank has as many of them",
        "use multiples of --tensor-parallel for --batch and --decode-batches",
    ),
)
