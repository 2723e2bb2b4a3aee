"""The rules of a run: options of what runs a build that exclude each other, or kinds of builds.

Facts are options by field, with `command` for a command's name, `run_baseline` for its --baseline,
`placed_on` for Triton's --device and `dynamo` for what that command starts (`worker_flag`,
`cluster_flag`: flags of the two); and of the build: `tensor_parallel`, `target`, `dtype`, `held_in`
for its caches' type, `single_shot`, `compresses`, `graphs`, `has_baseline`, `has_engines`.
`Build.require_run` makes them. `unequal_widths` is of its model.
"""

from snapexport.contract.rule import (
    BLOCKS,
    GENAI,
    LEAVE_OUT,
    ONTO_ROWS,
    OUTPUTS,
    PARKED,
    STATEFUL,
    Choice,
    Rule,
    fact,
    flag,
    not_given,
    not_in_genai,
    some,
    value,
)
from snapexport.contract.targets import TENSORRT, TENSORRT_RTX, capabilities, targets_with

_WITH_BASELINE = "build it again with --baseline"
_OF_ONE_RANK = "build it again without --tensor-parallel"

# Builds.
OF_RANKS = Choice(
    "a build with --tensor-parallel {tensor_parallel}",
    {"tensor_parallel": 2},
    lambda f: f.get("tensor_parallel", 1) > 1,
    joined="for",
)
FULL_CACHE = Choice(
    "a full cache",
    {"compresses": False},
    lambda f: f.get("run_baseline") or f.get("compresses") is False,
    joined="for",
)
WITHOUT_BASELINE = fact("a build without --baseline", "has_baseline", value=False, joined="for")
WITHOUT_ENGINES = fact("a build without engines", "has_engines", value=False, joined="for")
BF16 = fact("a bf16 build", "dtype", "bf16")
FP4 = fact("a build with NVFP4 weights", "holds_fp4")
OWN_OPERATORS = Choice(
    "a build with --target {target}",
    {"target": "onnxruntime"},
    lambda f: "target" in f and not capabilities(f["target"]).openvino,
    joined="for",
)
IN_16_BITS = Choice(
    "a {dtype} build",
    {"dtype": "fp16"},
    lambda f: f.get("dtype", "fp32") != "fp32",
)
CACHES_IN_16_BITS = Choice(
    "a build with caches in {held_in}",
    {"held_in": "fp16"},
    lambda f: f.get("held_in", "fp32") not in ("fp32", "int8"),
    joined="for",
)
NO_CUDA_KERNEL = Choice(
    "a build with --target {target} --dtype {dtype}",
    {"target": "onnxruntime", "dtype": "fp32"},
    lambda f: "dtype" in f and f["dtype"] not in capabilities(f["target"]).cuda_dtypes,
    joined="for",
)
COMPILED = Choice(
    "a build with --target {target}",
    {"target": "tensorrt"},
    lambda f: "target" in f and capabilities(f["target"]).compiled,
    joined="for",
)
SEVERAL_SLOTS = Choice(
    "a build with --batch {batch}", {"batch": 8}, lambda f: f.get("batch", 1) > 1, joined="for"
)
OF_ENGINES = Choice(
    "running graphs of --target {target}",
    {"target": "tensorrt", "backend": None},
    lambda f: "backend" in f and "target" in f and capabilities(f["target"]).compiled,
)

# What runs them.
COMMANDS = tuple(
    fact(f"`snapexport {command}`", "command", command)
    for command in ("bench", "calibrate", "diff", "dynamo", "engine", "eval", "genai", "triton")
)
HIT_RATES = some("--hit-samples {hit_samples}", "hit_samples", 1)
RUN_BASELINE = fact("--baseline", "run_baseline")
ON_GPU = Choice(
    "--backend {backend}",
    {"backend": "tensorrt"},
    lambda f: f.get("backend") in ("onnxruntime-cuda", "tensorrt"),
)
OPENVINO = value("backend", "openvino")
NOT_OPENVINO = Choice(
    "another backend than openvino",
    {"backend": None},
    lambda f: "backend" in f and f["backend"] != "openvino",
)
OPENVINO_DEVICE = flag("device", "GPU")
NOT_ITS_CPU = Choice(
    "--device {device}", {"device": "GPU"}, lambda f: f.get("device") in ("GPU", "NPU")
)
PRECISION = flag("precision", "bf16")
ON_CPU = Choice(
    "the CPU",
    {"placed_on": "cpu"},
    lambda f: f.get("placed_on") == "cpu" or f.get("backend") == "onnxruntime",
    joined="on",
)
CUDA = value("backend", "onnxruntime-cuda")
IN_ONNX_RUNTIME = Choice(
    "ONNX Runtime",
    {"backend": "onnxruntime"},
    lambda f: ON_CPU.holds(f) or CUDA.holds(f),
    joined="in",
)
TRITON_GPU = fact("--device gpu", "placed_on", "gpu")
ROLE = Choice("--role {role}", {"role": "prefill"}, lambda f: f.get("role", "both") != "both")
PREFILLED, HANDED_OVER = fact("a row handed over", "prefilled"), fact("`hand_over`", "hand_over")
DECODES = Choice(
    "an executor that decodes", {"role": "both"}, lambda f: f.get("role") in ("both", "decode")
)
SHARED_PROMPT_CACHE = fact("a shared prompt cache", "shares_prompt_cache")
PROMPT_CACHE = flag("prompt_cache", "DIR")
OF_ONE_CHUNK = fact("a build whose prefill chunk is L_max", "single_shot", joined="for")
DECODE_ROLE = value("role", "decode")
THREADS, PREPACK = flag("threads", 2), fact("a prepacked copy of the weights", "prepack")
PARKED_DIR = flag("parked_dir", "DIR")
SIZES = {"parked_dir_bytes": "parked_dir", "prompt_cache_size": "prompt_cache"}
"""Flags of a folder's size, and the folder's."""
NOTHING_PARKED = fact("--parked-rows", "parked_rows", value=0, joined="without")
SYSTEM, NO_CHAT = flag("system"), fact("--no-chat", "chat", value=False)
NO_TEMPLATE = fact("a build without a chat template", "has_template", value=False)

# Dynamo.
WORKER = fact("a single worker of `snapexport dynamo`", "dynamo", "worker", joined="for")
CLUSTER = fact("`snapexport dynamo up`", "dynamo", "up", joined="by")
OF_A_WORKER = some("a worker's {worker_flag}", "worker_flag", "--role")
OF_A_CLUSTER = some("a cluster's {cluster_flag}", "cluster_flag", "--decode")

# Engines.
RTX = Choice(
    TENSORRT_RTX.title,
    {"library": TENSORRT_RTX},
    lambda f: "library" in f and bool(f["library"].capabilities),
    joined="by",
)
ON_ITS_GPU = Choice(
    TENSORRT.title,
    {"library": TENSORRT},
    lambda f: "library" in f and not f["library"].capabilities,
    joined="by",
)
CAPABILITY = some("--compute-capability", "compute_capabilities", ("8.9",))
_ON_THE_GPU = {
    "hardware_compat": "ampere-plus",
    "version_compatible": True,
    "strip_weights": True,
    "refit": True,
    "optimization_level": 5,
    "timing_cache": "FILE",
}
"""Options of engines that are built on the GPU that runs them."""

RUN_RULES: tuple[Rule, ...] = (
    *(
        Rule(choice, OF_RANKS, "", _OF_ONE_RANK)
        for choice in (*COMMANDS, RUN_BASELINE, SHARED_PROMPT_CACHE)
    ),
    *(
        Rule(choice, OF_RANKS, "its ranks run in ONNX Runtime on the CPU", _OF_ONE_RANK)
        for choice in (ON_GPU, OPENVINO, OF_ENGINES)
    ),
    *(
        Rule(choice, OF_RANKS, "its rows are in several processes", _OF_ONE_RANK)
        for choice in (ROLE, PREFILLED, PARKED, OUTPUTS, ONTO_ROWS, PROMPT_CACHE)
    ),
    Rule(
        PROMPT_CACHE,
        OF_ONE_CHUNK,
        "the last chunk is always computed",
        "build it again with a smaller --prefill-chunk",
    ),
    Rule(PROMPT_CACHE, BLOCKS, "it takes no chunks"),
    Rule(PROMPT_CACHE, DECODE_ROLE, "it prefills nothing", LEAVE_OUT),
    Rule(
        BF16,
        ON_CPU,
        "ONNX Runtime cannot calculate in bf16 there",
        "use --dtype fp32, or a GPU: --backend onnxruntime-cuda, or engines of --target "
        f"{targets_with('runs_on_gpu')}",
    ),
    Rule(GENAI, STATEFUL, "it holds no other state than keys and values", "use `snapexport serve`"),
    *map(not_in_genai, (value("decode_attention", "valid"), flag("share_weights"))),
    Rule(
        FP4,
        IN_ONNX_RUNTIME,
        "it has no kernel for them",
        "use engines, or build it again with --weights dequantize",
    ),
    Rule(PREPACK, OPENVINO, "it always has one", LEAVE_OUT),
    Rule(THREADS, NOT_ITS_CPU, "it is for the CPU", "leave it out, or use --device CPU"),
    *(
        Rule(
            OPENVINO,
            choice,
            "its code for 16 bits in a graph was found to be wrong (2026.4)",
            "build it again with --target openvino --dtype fp32, without --cache-dtype, and add "
            "--precision bf16",
        )
        for choice in (IN_16_BITS, CACHES_IN_16_BITS)
    ),
    Rule(
        OPENVINO,
        OWN_OPERATORS,
        "it does not read its operators",
        "build it again with --target openvino or portable",
    ),
    *(
        Rule(choice, NOT_OPENVINO, "it is OpenVINO's", "leave it out, or add --backend openvino")
        for choice in (OPENVINO_DEVICE, PRECISION)
    ),
    Rule(
        CUDA,
        NO_CUDA_KERNEL,
        "ONNX Runtime's attention has only 16-bit kernels on a GPU",
        "build it again with --dtype fp16 or bf16, or with --target portable",
    ),
    Rule(
        TRITON_GPU,
        WITHOUT_ENGINES,
        "there a GPU runs only engines",
        "make them with `snapexport engine`, or use --device cpu",
    ),
    Rule(
        HANDED_OVER,
        DECODES,
        "decode writes to kept batch slots, too",
        'open the build with role="prefill"',
    ),
    Rule(
        RUN_BASELINE,
        WITHOUT_BASELINE,
        "it has no baseline graphs",
        _WITH_BASELINE,
    ),
    *(
        Rule(choice, FULL_CACHE, "it takes no prompt block by block", LEAVE_OUT)
        for choice in (BLOCKS, PARKED, OUTPUTS, ONTO_ROWS)
    ),
    *(
        Rule(choice, ON_GPU, "it is for the CPU", "leave it out, or use --backend onnxruntime")
        for choice in (THREADS, PREPACK)
    ),
    Rule(
        HIT_RATES,
        CUDA,
        "attention is computed from caches that are on the GPU there",
        "leave it out, or use --backend onnxruntime",
    ),
    Rule(THREADS, TRITON_GPU, "it is for the CPU", "leave it out, or use --device cpu"),
    Rule(
        PARKED_DIR, NOTHING_PARKED, "it holds copies of parked rows", "add --parked-rows 1 or more"
    ),
    *(
        Rule(flag(size, 1 << 30), not_given(folder), "it is the folder's size", LEAVE_OUT)
        for size, folder in SIZES.items()
    ),
    *(
        Rule(SYSTEM, other, "the chat template places it", "write it into the prompt")
        for other in (NO_CHAT, NO_TEMPLATE)
    ),
    Rule(OF_A_WORKER, CLUSTER, "it would do nothing", LEAVE_OUT),
    Rule(OF_A_CLUSTER, WORKER, "it would do nothing", LEAVE_OUT),
    Rule(
        flag("plugins", "FILE"),
        RTX,
        "its engines run the functions' bodies",
        "leave it out, or build the graphs with --target tensorrt",
    ),
    Rule(
        flag("plugins", "FILE"),
        fact("keys and values of different widths", "unequal_widths", joined="for"),
        "the plugins copy both alike",
        "leave it out: TensorRT then runs the functions' bodies",
    ),
    *(
        Rule(flag(field, example), RTX, "it has no such choice", LEAVE_OUT)
        for field, example in _ON_THE_GPU.items()
    ),
    Rule(
        CAPABILITY,
        ON_ITS_GPU,
        "it builds for the GPU that it runs on",
        "leave it out, or build the graphs with --target tensorrt-rtx",
    ),
)
