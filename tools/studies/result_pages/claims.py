"""Sentences of the pages with numbers in them, and whether the results say so."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from tools.studies.result_pages import speed
from tools.studies.result_pages.quality import MODELS, OPTIONS, TEXTS, lost
from tools.studies.result_pages.results import Row, found, report, share

SMOL_TEXTS = {1024: "", 2048: "", 4096: "_4096", 8000: "_8000"}


def losses(part: int) -> list[float]:
    """SnapStream's, of each model and length of prompt."""
    return [lost(name, length, "snapstream", part)["loss"] for _, length, name in TEXTS]


def between(values: Sequence[float], digits: int = 2) -> tuple[str, str]:
    return share(round(min(values), digits)), share(round(max(values), digits))


def text_at_a_quarter() -> bool:
    return (between(losses(4)), between(losses(8))) == ((".05", ".12"), (".10", ".29"))


def spread() -> bool:
    passages = lost("real_model_text_4096", 4096, "snapstream", 8)["losses"]
    return bool(statistics.median(passages) < 0.083 and round(max(passages), 2) == 1.13)


def in_errors(own: Sequence[float], other: Sequence[float]) -> float:
    """The mean of the passages' differences, in standard errors."""
    more = [a - b for a, b in zip(own, other, strict=True)]
    return statistics.fmean(more) / (statistics.stdev(more) / math.sqrt(len(more)))


def vote_against_streaming() -> bool:
    """Passage by passage, in standard errors."""
    scores = []
    for (length, name), part in product(SMOL_TEXTS.items(), (2, 4, 8, 16, 32)):
        rows = [
            lost(f"real_model_text{name}", length, system, part)["losses"]
            for system in ("snapstream", "streaming")
        ]
        scores.append(in_errors(*rows))
    return (len(scores), sum(z < -2 for z in scores), sum(z > 2 for z in scores)) == (20, 6, 0)


def longer_prompts() -> bool:
    rows = [losses(part)[: len(SMOL_TEXTS)] for part in (4, 8)]  # SmolLM2's come first
    return all(row == sorted(row, reverse=True) for row in rows)


def long_answers() -> bool:
    rows = report("quality", "real_model_votes_words")

    def of(kind: str, choice: str) -> float:
        return statistics.fmean(
            row["nats"] for row in rows if (row["kind"], row["choice"]) == (kind, choice)
        )

    default = "squared votes, causal softmax"
    four, twelve = (of(k, default) - of(k, "full") for k in ("phrase_4", "phrase_12"))
    return (round(four), round(twelve)) == (0, 22)


def int8_caches() -> bool:
    files = [report("quality", f"real_model_narrow_{name}")["continuations"] for name in NARROW]
    least = found(files[0], system="full")["nll"]
    ours = [
        [found(f, system="snapstream", slots=n)["nll"] - least for f in files] for n in (1024, 256)
    ]
    return all(other - own < 0.005 for own, other in ours)


NARROW = ("fp32", "int8")


def free_answers() -> bool:
    row = found(report("quality", "real_model_answers")["answers"], system="snapstream", slots=512)
    return bool(statistics.median(row["equal"]) == 7)


def weights(name: str) -> Row:
    return found(report("quality", "weights_smollm2")["rows"], weights=name)


def close_to_whole() -> bool:
    kept = (weights(f"snapexport {name}")["nats"] for name in ("keep", "int8"))
    return max(kept) < 0.01 and share(round(weights("snapexport int4")["nats"], 2)) == ".14"


def four_bits() -> bool:
    """By more than two standard errors."""
    own = weights("snapexport int4")
    others = [weights("llama.cpp Q4_0"), weights("onnxruntime-genai int4")]
    return all(
        own["bits_per_weight"] < other["bits_per_weight"]
        and other["nats"] - own["nats"] > 2 * math.hypot(own["nats_se"], other["nats_se"])
        for other in others
    )


def six_bits() -> bool:
    own, other = weights("snapexport int4"), weights("llama.cpp Q4_K_M")
    return bool(own["nats"] > other["nats"] and round(other["bits_per_weight"], 2) == 6.16)


def eviction_of_genai() -> bool:
    rows = report("quality", "peer_eviction_smollm2")["results"]
    named = [f"OpenVINO GenAI{kind}" for kind in (", evicting", ", evicting, window 32", "")]
    of = [found(rows, system=name, samples=20) for name in (*named, "snapstream", "full")]
    return [round(20 * row["score"]) for row in of] == [6, 11, 13, 18, 14]


def on_a_gpu() -> bool:
    """Answers of 3 prompts of each budget."""
    rows = [row for run in report("quality", "qwen_gpu_niah")["runs"] for row in run["results"]]
    at: Row = {"task": "niah_single", "length": 32000, "mode": "aware"}
    own = [row for row in rows if at.items() <= row.items()]
    mean = {
        system: statistics.fmean(row["score"] for row in own if row["system"] == system)
        for system in ("snapstream", "snapkv", "streaming")
    }
    return list(mean.values()) == [1, 1, 0]


def steps_on_a_gpu() -> Iterator[str]:
    """Rows of the table of the GPU."""
    model = report("speed", "gpu_h200")["llama_8b"]
    own, full = model["snapstream, 4,096 slots, batch 16"], model["full, batch 1"]
    for context in (8192, 32768, 131000):
        steps = own["decode_ms"][f"16 at {context}"], own["decode_ms"][f"1 at {context}"]
        times = [f"{ms:.1f} ms" for ms in (*steps, full["decode_ms"][f"1 at {context}"])]
        yield f"| {context:,} | {' | '.join(times)} |"


def one_option_is_ahead() -> bool:
    """Passage by passage, in standard errors: one cell by two; a ring of three quarters behind."""
    more = dict[tuple[str, str], float]()
    for model, change in product(MODELS, filter(None, OPTIONS.values())):
        rows = report("quality", f"options_{model}")["continuations"]
        both = (found(rows, system=f"snapstream{one}")["losses"] for one in (change, ""))
        more[model, change] = in_errors(*both)
    ahead = [cell for cell, errors in more.items() if errors < -2]
    rings = [more[model, ":L_recent=381"] for model in MODELS]
    return ahead == [("qwen15", ":pool_kernel=7")] and min(rings) > 0


def functions() -> bool:
    at: Row = {"task": "function", "samples": 10}
    compared = product((1024, 512), ("snapstream", "snapstream:pool_kernel=63"))
    caches, files = [(4352, "full"), *compared], ("qwen_pool_4000", "qwen15_function_4000")
    both = [report("quality", name)["results"] for name in files]
    own = [found(r, system=name, slots=n, **at)["score"] for r in both for n, name in caches]
    return [round(10 * score) for score in own] == [8, 2, 8, 1, 7, 10, 6, 10, 0, 10]


def blocks() -> bool:
    rows = [row for row in report("quality", "blocks") if row["task"] == "niah_single"]
    others = "smollm2.max.build", "smollm2.calibrated.build"
    asked = [row["found"] for row in rows if row["build"] not in others]
    return asked == [20, 19, 20, 20]


def quotations() -> bool:
    rows = report("quality", "tasks_qwen")["results"]
    asked = product(("kv", "phrase_32"), ("snapstream", "full"))
    shares = [found(rows, task=task, system=system)["score"] for task, system in asked]
    return [share(one) for one in shares] == [".00", ".90", ".20", "1.00"]


def longer_pools() -> bool:
    """A longer pool answers no more quotations, of three caches each."""
    scores = [share(row["score"]) for row in report("quality", "quotes_qwen")["results"]]
    return scores == ["1.00", ".40", ".40", "1.00", ".30", ".40"]


def of_sparse_prefill() -> Iterator[str]:
    """The rows and the sentences of sparse prefill's quality."""
    yield from speed.sparse_losses()
    key, text, variables = speed.blocks_ahead()
    yield f"by {key} nats a token on a pass key at 8,000 tokens and {text} on text"
    yield f"worse by {variables.removeprefix('-')} on variables there"


CLAIMS: dict[str, Callable[[], bool]] = {
    "loses .05 to .12 nats a token of running text**, an eighth .10 to .29": text_at_a_quarter,
    "half of SmolLM2's passages lose less than .083, one 1.13": spread,
    "two standard errors in 6 of 20 cells of SmolLM2, and in none worse": vote_against_streaming,
    "SmolLM2 loses less of longer prompts": longer_prompts,
    "answers 6 of 20 prompts of 4,000 tokens in 1,024 tokens, 11 if 32 tokens vote and not 8, "
    "and its full cache 13; SnapStream 18, ours in full 14": eviction_of_genai,
    "finds each number in 1/4, 1/8 and 1/32 of the cache with SnapStream and snapkv, none with "
    "streaming": on_a_gpu,
    "answers .00 of UUIDs (full .90) and .20 of phrases of 32 words (1.00)": quotations,
    "four words loses nothing, one of twelve words 22 nats": long_answers,
    "`--cache-dtype int8` costs .005 nats a token at most": int8_caches,
    "but for a pool of 7 on the 1.5B": one_option_is_ahead,
    "a ring of three quarters loses more on each": one_option_is_ahead,
    "a median of 7 tokens": free_answers,
    "a named function 8 times of 10 with the full cache, 2 times with a quarter, and 8 with "
    "`--pool-kernel 63`": functions,
    "19 of 20 at 1/8 of 2,048 tokens on SmolLM2 (chunks 20), 20 of 20 at 1/8 of 4,000 on "
    "Qwen2.5-Coder (20)": blocks,
    "`int8` cost less than .01 nats a token.** `int4` costs .14": close_to_whole,
    "`int4` loses less than Q4_0 and onnxruntime-genai's int4, in fewer bits": four_bits,
    "Q4_K_M loses less, in 6.16 bits": six_bits,
}
