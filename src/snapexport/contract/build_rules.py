"""The rules of a build: flags of `build` and `plan` that exclude each other.

Facts are flags by field, and of the model: those of `ModelFacts.features`; `gguf`, `quantized`,
`attention_sinks`, `mlp_bias`, `other_family`; `CacheGeometry.chunk_facts` adds those of prefill's
chunks, and `uneven_slots` are batch slots that ranks cannot share equally.
"""

from collections.abc import Callable

from snapexport.contract.presets import PRESETS
from snapexport.contract.rule import LEAVE_OUT, Choice, Facts, Rule, fact, flag, some, value
from snapexport.contract.targets import TARGETS, TargetCapabilities, capabilities, targets_with
from snapexport.contract.voters import VOTERS
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
EXTEND, MTP, BASELINE = flag("extend"), flag("mtp"), flag("baseline")
PSEUDO, REPEAT = value("vote_queries", "pseudo"), value("vote_queries", "repeat")
CALIBRATED = Choice(
    "--vote-queries calibrated",
    {"vote_queries": "calibrated", "mean_queries": True},
    lambda f: f.get("vote_queries") == "calibrated" or bool(f.get("mean_queries")),
)
MEANS = some("--mean-queries", "mean_queries", True)
NO_MEANS = Choice(
    "--mean-queries",
    {"mean_queries": None},
    lambda f: "mean_queries" in f and not f["mean_queries"],
    joined="without",
)
OTHER_QUERIES = Choice(
    "--vote-queries {vote_queries}",
    {"vote_queries": "prompt"},
    lambda f: f.get("vote_queries") not in (None, "calibrated"),
)
STEPS = Choice(
    "--tokens-per-step {tokens_per_step}",
    {"tokens_per_step": 4},
    lambda f: f.get("tokens_per_step", 1) > 1,
)
RANKS = Choice(
    "--tensor-parallel {tensor_parallel}",
    {"tensor_parallel": 2},
    lambda f: f.get("tensor_parallel", 1) != 1,
)
HEADS = Choice(
    "--head-budget",
    {"head_budget": True},
    lambda f: bool(f.get("head_budget")) or f.get("budget") == "heads",
)
EQUAL_HEADS = Choice(
    "--budget {budget}",
    {"budget": "uniform"},
    lambda f: f.get("budget") not in (None, "heads"),
)
STORED = Choice(
    "--cache-dtype {cache_dtype}",
    {"cache_dtype": "int8", "dtype": "fp32"},
    lambda f: f.get("cache_dtype") not in (None, f.get("dtype")),
)
NARROW_PROMPT = Choice(
    "--prompt-cache-dtype {prompt_cache_dtype}",
    {"prompt_cache_dtype": "fp16", "dtype": "fp32"},
    lambda f: f.get("prompt_cache_dtype") not in (None, f.get("dtype")),
)
INT8 = value("cache_dtype", "int8")
FP16_CACHE = Choice(
    "--cache-dtype fp16",
    {"cache_dtype": "fp16", "dtype": "fp32"},
    lambda f: f.get("cache_dtype") == "fp16" != f.get("dtype"),
)
VALID, ALL = value("decode_attention", "valid"), value("decode_attention", "all")
BUDGETED = some("--prefill-budget", "prefill_budget", 2048)
CAPACITIES = some("--prefill-capacities", "prefill_capacities", (64,))
SHORT = Choice(
    "--short-chunks",
    {"short_chunks": (32,)},
    lambda f: any(f.get("short_chunks") or ()),
)
KEPT = some("--K {K}", "K", 16)
FULL, STREAMING, SAGE = (value("policy", policy) for policy in ("full", "streaming", "sage"))
LATENT = fact("latent attention", "latent", joined="for")
KV_HEADS = fact("attention with KV heads", "latent", value=False, joined="for")
OTHER_HEADS = fact("models whose layers have different heads", "uneven_heads", joined="for")
WIDTHS = fact("keys and values of different widths", "unequal_widths", joined="for")
IRREGULAR = fact(
    "models with uneven heads, shared caches or chunked attention", "irregular", joined="for"
)
SHARED_CACHES = fact("models whose layers share caches", "shared_caches", joined="for")
STATES = fact("models with recurrent states", "states", joined="for")
CHUNKED = fact("chunked attention", "chunked", joined="for")
SHARED_SLOTS = flag("data_parallel_attention")
NO_RANKS = fact("--tensor-parallel", "tensor_parallel", value=1, joined="without")
GROUPED = flag("head_groups", 2)
NO_HEADS = Choice(
    "--head-budget",
    {"head_budget": None},
    lambda f: "head_budget" in f and not HEADS.holds(f),
    joined="without",
)
AFTER_PROMPT = Choice(
    "--vote-queries {vote_queries}",
    {"vote_queries": "repeat"},
    lambda f: f.get("vote_queries") in ("pseudo", "repeat", "calibrated"),
)
SINGLE_SHOT = fact("a prefill chunk of L_max", "single_shot")
OTHER_CHUNKS = Choice(
    "a prefill chunk of {prefill_chunk} for --L-obs {voters}",
    {"voters": 8, "prefill_chunk": 16},
    lambda f: "voters" in f and f["voters"] != f["prefill_chunk"],
)
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
    "vote_queries": "pseudo",
}
_SIZES = {"kv_budget": 64, "L_sink": 4, "L_recent": 32, "K": 16, "L_obs": 8, "pool_kernel": 7}
_ANOTHER = {"L_sink": 4, "L_obs": 8, "pool_kernel": 7, "softmax": "candidates"}
_KEEPS_ALL = "it keeps every position"
_OF_COMPRESSED = "the full cache has one form, and prefill extends it"


def _fixed(policy: str, field: str, fixed: int | str) -> Rule:
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
    Rule(LINKED, INTEGERS, "quantized weights are new files"),
    # Caches.
    Rule(
        INT8,
        ALL,
        "int8 caches are read only at valid slots",
        "drop --decode-attention all",
    ),
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
    Rule(
        INT8,
        LATENT,
        "a cache of latents is small already",
        "leave it out, or use --cache-dtype fp16",
    ),
    Rule(VALID, LATENT, "ONNX Runtime has no operator for it", LEAVE_OUT),
    *(
        Rule(choice, WIDTHS, "ONNX Runtime's operator for valid slots takes one width", LEAVE_OUT)
        for choice in (VALID, INT8)
    ),
    Rule(
        CAPACITIES,
        _targets(lambda target, f: not target.attends_to_capacity),
        "its attention reads a prompt no further than it is long",
        f"leave it out, or use --target {targets_with('attends_to_capacity')}",
    ),
    # Policies and votes.
    Rule(EXTEND, FULL, _OF_COMPRESSED, LEAVE_OUT),
    Rule(STORED, FULL, _OF_COMPRESSED, "leave it out: the full cache has the build's dtype"),
    Rule(VALID, FULL, _OF_COMPRESSED, LEAVE_OUT),
    Rule(BASELINE, FULL, "its graphs are the baseline's already"),
    *(
        Rule(flag(field, example), FULL, _KEEPS_ALL, LEAVE_OUT)
        for field, example in (_SIZES | _VOTES).items()
    ),
    *(Rule(choice, FULL, _KEEPS_ALL, LEAVE_OUT) for choice in (HEADS, MEANS)),
    Rule(GROUPED, FULL, _KEEPS_ALL, LEAVE_OUT),
    *(
        Rule(flag(field, example), STREAMING, "it keeps no top-k", LEAVE_OUT)
        for field, example in _VOTES.items()
    ),
    Rule(KEPT, STREAMING, "it keeps no top-k", LEAVE_OUT),
    *(Rule(choice, STREAMING, "it keeps no top-k", LEAVE_OUT) for choice in (HEADS, MEANS)),
    *(
        _fixed(policy, field, fixed)
        for policy, fields in PRESETS.items()
        for field, fixed in fields.items()
        if field != "K"  # KEPT
    ),
    Rule(
        GROUPED,
        NO_HEADS,
        "it groups KV heads by their budgets",
        "give a file of head budgets as --head-budget (docs/reference/vote-options.md)",
    ),
    Rule(HEADS, EQUAL_HEADS, "it shares K among KV heads"),
    Rule(HEADS, OTHER_HEADS, "a file of head budgets has one number of KV heads", LEAVE_OUT),
    Rule(HEADS, SHARED_CACHES, "a group would have queries of several layers", LEAVE_OUT),
    Rule(HEADS, STATES, "", LEAVE_OUT),
    *(Rule(HEADS, choice, "") for choice in (REPEAT, CALIBRATED)),
    *(
        Rule(choice, STATES, f"{what}, and a state takes each token once", LEAVE_OUT)
        for choice, what in (
            (PSEUDO, "pseudo tokens are taken back after their vote"),
            (REPEAT, "a repeated prompt is taken back after its vote"),
            (STEPS, "wrong drafts are taken back"),
            (BUDGETED, "blocks of keys begin where whole chunks do"),
        )
    ),
    Rule(EXTEND, PSEUDO, "the end of a block or of its prompt votes"),
    Rule(EXTEND, REPEAT, "the end of a block or of its prompt votes"),
    *(
        Rule(choice, SAGE, "there the last token votes alone", "use --policy snapstream")
        for choice in (REPEAT, CALIBRATED)
    ),
    *(
        Rule(flag(field, (_SIZES | _VOTES)[field]), choice, why, LEAVE_OUT)
        for choice, why in (
            (REPEAT, "a position is worth the largest attention that any repeated token gives it"),
            (CALIBRATED, "a position is worth its key's score by the mean query"),
        )
        for field in VOTERS[choice.example["vote_queries"]].unused
    ),
    Rule(
        CALIBRATED,
        NO_MEANS,
        "it votes by the mean queries of texts",
        "measure them with `snapexport calibrate BUILD --mean-queries --documents DIR --out FILE`",
    ),
    Rule(MEANS, OTHER_QUERIES, "they are for --vote-queries calibrated", LEAVE_OUT),
    Rule(CALIBRATED, LATENT, "its queries are no states of one head", LEAVE_OUT),
    Rule(CALIBRATED, RANKS, "", LEAVE_OUT),
    Rule(MTP, IRREGULAR, "", LEAVE_OUT),
    Rule(
        AFTER_PROMPT,
        SINGLE_SHOT,
        "a single shot keeps no full-length cache of the prompt",
        "use a --prefill-chunk below --L-max",
    ),
    Rule(REPEAT, OTHER_CHUNKS, "all tokens of a prefill chunk vote", "leave --L-obs out"),
    # Sparse prefill.
    Rule(
        BUDGETED, SINGLE_SHOT, "a single shot is one chunk", "use a --prefill-chunk below --L-max"
    ),
    Rule(BUDGETED, LATENT, "blocks are chosen by keys of KV heads", LEAVE_OUT),
    Rule(BUDGETED, FULL, "the full cache is exact, for comparison", LEAVE_OUT),
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
    Rule(NARROW_PROMPT, BUDGETED, "blocks are chosen by keys in the dtype"),
    # Short chunks.
    Rule(
        SHORT,
        SINGLE_SHOT,
        "a single shot is padded to L_max",
        "leave it out, or use a smaller --prefill-chunk",
    ),
    Rule(SHORT, MTP, "its drafter reads the hidden states of whole chunks"),
    Rule(SHORT, BUDGETED, "a prompt's last whole chunk attends to everything"),
    Rule(SHORT, REPEAT, "all tokens of a prefill chunk vote"),
    # Ranks.
    *(
        Rule(choice, RANKS, "")
        for choice in (QUANTIZED, MTP, BASELINE, LINKED, STEPS, PSEUDO, REPEAT, HEADS, BUDGETED)
    ),
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
