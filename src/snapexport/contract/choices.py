"""Choices that rules of many flags and methods name: policies, models, ranks and chunks."""

from snapexport.contract.rule import Choice, fact, flag, some, value

FULL, STREAMING, SAGE = (value("policy", policy) for policy in ("full", "streaming", "sage"))
KEEPS_ALL = "it keeps every position"
NO_TOPK = "it keeps no top-k"

LATENT = fact("latent attention", "latent", joined="for")
OTHER_HEADS = fact("models whose layers have different heads", "uneven_heads", joined="for")
WIDTHS = fact("keys and values of different widths", "unequal_widths", joined="for")
IRREGULAR = fact(
    "models with uneven heads, shared caches or chunked attention", "irregular", joined="for"
)
SHARED_CACHES = fact("models whose layers share caches", "shared_caches", joined="for")
STATEFUL = fact("models with recurrent states", "states", joined="for")
CHUNKED = fact("chunked attention", "chunked", joined="for")

SINGLE_SHOT = fact("a prefill chunk of L_max", "single_shot")
BASELINE = flag("baseline")
RANKS = Choice(
    "--tensor-parallel {tensor_parallel}",
    {"tensor_parallel": 2},
    lambda f: f.get("tensor_parallel", 1) != 1,
)
NARROW_PROMPT = Choice(
    "--prompt-cache-dtype {prompt_cache_dtype}",
    {"prompt_cache_dtype": "fp16", "dtype": "fp32"},
    lambda f: f.get("prompt_cache_dtype") not in (None, f.get("dtype")),
)

# Of a run.
BLOCKS = value("prefill", "blocks")
PARKED = some("--parked-rows {parked_rows}", "parked_rows", 1)
OUTPUTS = some("--compress-every {compress_every}", "compress_every", 64)
ONTO_ROWS = fact("prefill onto earlier rows", "prefill", "both")
