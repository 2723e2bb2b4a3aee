"""The tables of docs/quality.md and of its details, as they follow from the results."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from tools.studies.result_pages.results import Row, found, line, mean, nats, report, share

CACHES = {
    "SnapStream": "snapstream",
    "streaming": "streaming",
    "`snapkv`": "snapkv",
    "`sage`": "sage",
}


def text() -> Iterator[str]:
    """Nats lost a token, with a half to a 32nd of the prompt."""
    for length, name in {1024: "", 2048: "", 4096: "_4096", 8000: "_8000"}.items():
        rows = report("quality", f"real_model_text{name}")["continuations"]
        slots = [2 ** (length - 1).bit_length() >> n for n in range(1, 6)]
        losses = {
            cache: [found(rows, length=length, system=system, slots=number) for number in slots]
            for cache, system in CACHES.items()
        }
        for cache, cells in losses.items():
            yield line(f"{length:,}", cache, *(mean(row["losses"]) for row in cells))


def answered(files: list[tuple[str, int, int]], more: dict[str, str]) -> Iterator[str]:
    """The share of prompts that each cache answers, by file, prompt length and slots."""
    for cache, system in {"full": "full", **CACHES, **more}.items():
        cells = []
        for name, length, slots in files:
            at: Row = {"system": system, "length": length, "task": "niah_single"}
            if system != "full":
                at["slots"] = slots
            row = found(report("quality", name)["results"], **at)
            cells.append(share(row["score"]) if row else "")
        yield line(cache, *cells)


NEEDLES = [
    ("real_model_needles", 2048, 512),
    ("real_model_needles_128", 2048, 128),
    ("real_model_needles_4096", 4096, 512),
    ("real_model_needles_4096", 4096, 256),
    ("real_model_needles_4096", 4096, 128),
    ("real_model_needles_8000", 8000, 1024),
    ("real_model_needles_8000", 8000, 512),
    ("real_model_needles_8000", 8000, 256),
]
AFTER = [
    ("real_model_agnostic", 1024, 256),
    ("real_model_agnostic_2048", 2048, 512),
    ("real_model_agnostic_4096", 4096, 1024),
]
PSEUDO = {"SnapStream, `--vote-queries pseudo`": "snapstream:vote_queries=pseudo"}


def narrow() -> Iterator[str]:
    """Nats lost a token against the full cache in fp32."""
    names = {
        "fp32": "fp32",
        "`--cache-dtype int8`": "int8",
    }
    files = {way: report("quality", f"real_model_narrow_{name}") for way, name in names.items()}
    least = found(files["fp32"]["continuations"], system="full")["nll"]
    for way, file in files.items():
        full = found(file["continuations"], system="full")
        ours = [found(file["continuations"], system="snapstream", slots=n) for n in (1024, 256)]
        yield line(way, *(nats(row["nll"] - least) for row in (full, *ours)))


WEIGHTS = ("smollm2", "qwen")


def weights() -> Iterator[str]:
    """Bits a weight, nats lost a token, KL and milliseconds a step, by model and format."""
    files = [report("quality", f"weights_{model}")["rows"] for model in WEIGHTS]
    for name in dict.fromkeys(row["weights"] for rows in files for row in rows):
        cells: list[str] = []
        for row, rows in ((found(rows, weights=name), rows) for rows in files):
            loss = f"{nats(round(row['nats'], 3))} ({nats(row['nats_se'])})" if row else ""
            cells += [f"{row['bits_per_weight']:.2f}" if row else "", loss]
            cells.append(nats(row["kl"]) if row else "")
            if any("step_ms" in one for one in rows):
                cells.append(f"{row['step_ms']['median']:.1f}" if "step_ms" in row else "")
        yield line(name, *cells)


TEXTS = [
    ("SmolLM2-135M", 1024, "real_model_text"),
    ("SmolLM2-135M", 2048, "real_model_text"),
    ("SmolLM2-135M", 4096, "real_model_text_4096"),
    ("SmolLM2-135M", 8000, "real_model_text_8000"),
    ("Qwen2.5-Coder-0.5B", 1024, "qwen_text"),
    ("Qwen2.5-Coder-0.5B", 4000, "qwen_text_4000"),
    ("Qwen2.5-Coder-0.5B", 8000, "qwen_text_8000"),
    ("Qwen2.5-Coder-1.5B", 4000, "qwen15_text_4000"),
    ("Qwen2.5-Coder-1.5B", 8000, "qwen15_text_8000"),
    ("Gemma 3 270M", 8000, "gemma_text_8000"),
]


def lost(name: str, length: int, system: str, share: int) -> Row:
    """The row of a cache with one slot for so many tokens of the next power of two."""
    rows = report("quality", name)["continuations"]
    slots = 2 ** (length - 1).bit_length() // share
    return found(rows, length=length, system=system, slots=slots)


def texts() -> Iterator[str]:
    """Nats lost a token of running text, by model, prompt, share and cache."""
    for model, length, name in TEXTS:
        shown = product((4, 8), ("snapstream", "streaming"))
        cells = (lost(name, length, system, share) for share, system in shown)
        yield line(model, f"{length:,}", *(mean(row["losses"]) if row else "" for row in cells))


class Asked(NamedTuple):
    """Prompts of one kind. files: of results, in which the cells are."""

    what: str
    model: str
    length: int
    files: tuple[str, ...]
    task: str = "niah_single"
    mode: str = "aware"

    def share(self, system: str, part: int = 0) -> str:
        """Answered by a cache of a part of the prompt; empty if that was not measured."""
        at: Row = {"system": system, "task": self.task, "length": self.length, "mode": self.mode}
        if part:
            at["slots"] = 2 ** (self.length - 1).bit_length() // part
        rows = (found(report("quality", name)["results"], **at) for name in self.files)
        return next((share(row["score"]) for row in rows if row), "")


SMOL, QWEN, QWEN_15 = "SmolLM2-135M", "Qwen2.5-Coder-0.5B", "Qwen2.5-Coder-1.5B"
NUMBER, OF_MANY = "a number", "one of many numbers"
AFTERWARDS = "a number, question after compression"
ASKED = [
    Asked(NUMBER, SMOL, 2048, ("real_model_needles", "real_model_needles_128")),
    Asked(NUMBER, QWEN, 4000, ("qwen_niah_4000",)),
    Asked(OF_MANY, QWEN, 4000, ("qwen_niah_4000",), task="niah_multikey"),
    Asked("four numbers", QWEN, 4000, ("qwen_tasks_4000",), task="niah_multiquery"),
    Asked("names of a value", QWEN, 4000, ("qwen_pool_4000", "qwen_tasks_4000"), task="vt"),
    Asked("a function", QWEN, 4000, ("qwen_pool_4000", "qwen_tasks_4000"), task="function"),
    Asked("a function", QWEN_15, 4000, ("qwen15_function_4000",), task="function"),
    Asked(AFTERWARDS, SMOL, 4096, ("real_model_agnostic_4096",), mode="agnostic"),
    Asked(AFTERWARDS, QWEN, 4000, ("qwen_agnostic_4000",), mode="agnostic"),
]


def asked() -> Iterator[str]:
    """The share of prompts answered, by question, model, prompt, cache and budget."""
    for one in ASKED:
        ours = (one.share("snapstream", part) for part in (4, 8, 16))
        others = (one.share(system, 4) for system in ("streaming", "snapkv"))
        cells = (one.share("full"), *ours, *others)
        yield line(one.what, one.model, f"{one.length:,}", *cells)


def options() -> Iterator[str]:
    """Needles of 20 that SnapStream finds in 128 slots, one option changed, by model."""
    names = "real_model_needles_128", "qwen_needles_128"
    files = [report("quality", name)["results"] for name in names]
    for name, change in {
        "the defaults (`--pool-kernel 31 --L-obs 16`)": "",
        "`--pool-kernel 63`": ":pool_kernel=63",
        "`--pool-kernel 21`": ":pool_kernel=21",
        "`--pool-kernel 15`": ":pool_kernel=15",
        "`--pool-kernel 7`": ":pool_kernel=7",
        "`--L-obs 32`": ":L_obs=32",
        "`--L-obs 8`": ":L_obs=8",
        "`--vote sum`": ":vote=sum",
        "`--group max`": ":group=max",
        "`--softmax candidates`": ":softmax=candidates",
        "`--pool max`": ":pool=max",
        "`--budget pyramid`": ":budget=pyramid",
    }.items():
        rows = (found(rows, system=f"snapstream{change}") for rows in files)
        yield line(name, *(round(20 * row["score"]) if row else "" for row in rows))


OPTIONS = {
    "the defaults": "",
    **{f"`--pool-kernel {P}`": f":pool_kernel={P}" for P in (7, 63)},
    **{f"`--L-obs {W}`": f":L_obs={W}" for W in (4, 32)},
    "`--softmax candidates`": ":softmax=candidates",
    "`--vote sum`": ":vote=sum",
    "a quarter of the slots for the ring": ":L_recent=127",
    "three quarters": ":L_recent=381",
}
MODELS = "smollm2", "qwen", "qwen15", "gemma"


def options_on_text() -> Iterator[str]:
    """Nats lost a token with one option changed, by model."""
    files = [report("quality", f"options_{model}")["continuations"] for model in MODELS]
    for name, change in OPTIONS.items():
        rows = (found(rows, system=f"snapstream{change}") for rows in files)
        yield line(name, *(mean(row["losses"]) for row in rows))


TASKS = "tasks_smollm2", "tasks_qwen"


def tasks() -> Iterator[str]:
    """The share of each task's prompts that a cache answers, by model."""
    files = [report("quality", name)["results"] for name in TASKS]
    for task in dict.fromkeys(row["task"] for row in files[0]):
        shown = product(files, ("full", "snapstream", "streaming"))
        cells = (found(rows, task=task, system=system)["score"] for rows, system in shown)
        yield line(f"`{task}`", *map(share, cells))


def functions() -> Iterator[str]:
    """Functions of 10 that SnapStream copies, one option changed."""
    rows = report("quality", "qwen_function_4000")["results"]
    for name, changes in {
        "the defaults (`--pool-kernel 31`)": [""],
        "`--pool-kernel 63`": [":pool_kernel=63"],
        "`--L-recent 30`, so that more is kept by the vote": [":L_recent=30"],
        "`--L-obs 64`, `--group max`, `--vote sum`": [":L_obs=64", ":group=max", ":vote=sum"],
    }.items():
        scores = {round(10 * found(rows, system=f"snapstream{one}")["score"]) for one in changes}
        (copied,) = scores
        yield line(name, f"{copied} each" if len(changes) > 1 else copied)


def retrieval() -> Iterator[str]:
    """Entries of a register that the toy checkpoints find."""
    for checkpoint in ("untaught", "bundled"):
        rows = report("quality", f"retrieval_{checkpoint}_table")["results"]
        full = found(rows, system="full", mode="aware")["score"]
        yield line(checkpoint, "full", *[share(full)] * 4)
        for cache, system in {**CACHES, "SnapStream, P = 7": "snapstream:pool_kernel=7"}.items():
            at = {"system": system, "mode": "aware"}
            scores = (found(rows, slots=slots, **at)["score"] for slots in (512, 256, 128, 64))
            yield line(checkpoint, cache, *map(share, scores))
