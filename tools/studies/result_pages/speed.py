"""The tables of docs/speed.md, as they follow from its results."""

import statistics
from collections.abc import Iterator
from itertools import product

from tools.studies.result_pages.results import found, line, mean, ms, nats, report


def equal_memory() -> Iterator[str]:
    """The shortest and the longest prompts; a picture has all."""
    measured = report("speed", "equal_memory")
    for row in measured["sections"]["decode"]:
        ends = row["context"] in (16_384, 131_072)
        if ends and row["cache"] not in ("1/1", "1/4, int8"):
            at = {"context": row["context"], "cache": row["cache"]}
            ratio, rate = found(measured["summary"], **at)["times_full"], row["tokens_per_second"]
            cells = f"{row['context']:,}", row["cache"], row["batch"], ms(row)
            yield line(*cells, f"{rate:.1f}", f"{ratio:.2f}")


def context() -> Iterator[str]:
    """Some of the contexts; a picture has all."""
    rows = report("speed", "context")["sections"]["decode"]
    for at in (1_024, 4_096, 16_384, 32_768, 131_072):
        full, small, large = (found(rows, context=at, kv_budget=n) for n in (None, 1024, 4096))
        ratio = full["seconds"]["median"] / small["seconds"]["median"]
        yield line(f"{at:,}", ms(full), ms(small), ms(large), f"{ratio:.2f}")


def overhead() -> Iterator[str]:
    for row in report("speed", "overhead")["summary"]:
        if row["L_max"] != row["prompt"] not in (1024, 16384):
            continue
        sizes = (f"{row[name]:,}" for name in ("prompt", "L_max", "slots"))
        times = f"{row['prefill_seconds']:.2f}", f"{1e3 * row['compress_seconds']:.1f}"
        yield line(*sizes, *times, f"{row['share']:.2%}")


def sparse_prefill() -> Iterator[str]:
    for row in report("speed", "sparse_prefill")["summary"]:
        if row["budget"] < row["prompt"]:
            seconds = (f"{row[name]:.1f}" for name in ("full_seconds", "seconds"))
            sizes = f"{row['prompt']:,}", f"{row['budget']:,}"
            yield line(*sizes, *seconds, f"{row['share']:.2f}")


OPENVINO = (
    *("snapexport int8, SnapStream, OpenVINO in bf16", "OpenVINO GenAI int8"),
    *("OpenVINO GenAI int8, evicting", "snapexport int4, SnapStream, OpenVINO in bf16"),
    *("OpenVINO GenAI int4", "OpenVINO GenAI int4, evicting"),
)


WITHOUT_AMX = {
    "request": [(1000, "ttft", 1.0, 2), (7900, "ttft", 1.0, 1), (7900, "request", 1.0, 1)],
    "request_qwen": [
        *[(1000, "ttft", 1.0, 2), (8000, "ttft", 1.0, 1)],
        *[(32000, "ttft", 1.0, 0), (32000, "step", 1e3, 1)],
    ],
}
"""By experiment: prompt, what is shown of it, in which unit, and digits."""


def without_amx() -> Iterator[str]:
    for system in OPENVINO:
        cells = []
        for name, columns in WITHOUT_AMX.items():
            rows = report("speed", f"{name}_without_amx")["summary"]
            for prompt, kind, scale, digits in columns:
                row = found(rows, system=system, prompt=prompt)
                cells.append(f"{scale * row[kind]:.{digits}f}" if row else "")
        yield line(system, *cells)


PEERS = (
    *("snapexport fp32, SnapStream", "snapexport fp32, full", "onnxruntime-genai fp32"),
    *("transformers, static", "kvpress SnapKVPress", "llama.cpp F32"),
    *("snapexport fp16, SnapStream", "transformers in bf16, static", "llama.cpp F16"),
    *("snapexport int4, SnapStream", "snapexport int4, full", "onnxruntime-genai int4"),
    "llama.cpp Q4_0",
)


def peers() -> Iterator[str]:
    """Of both models, seconds to the first token of a long prompt, then steps.

    onnxruntime-genai's steps after long contexts are those of its graph.
    """
    files = {"peers": (4096, 1024, 32768), "peers_smollm2": (7900, 1024, 7900)}
    for system in PEERS:
        cells = []
        for name, (prompt, *contexts) in files.items():
            sections = report("speed", name)["sections"]
            first = found(sections["ttft"], system=system, prompt=prompt)
            cells.append(f"{first['seconds']['median']:.2f}" if first else "")
            for at in contexts:
                row = found(sections["decode"], system=system, context=at)
                graph = found(sections["decode"], system=f"{system}, its graph", context=at)
                cells.append(ms(row or graph))
        yield line(system, *cells)


LENGTHS = "sparse_prefill_qwen", "sparse_prefill_qwen_16000", "sparse_prefill_qwen_32000"


def sparse_losses() -> Iterator[str]:
    """A row for each length: what the chosen blocks lose, and the numbers found in each way."""
    for name in LENGTHS:
        rows = (whole := report("quality", name))["summary"]
        text, keys = (found(rows, kind=kind, way="blocks") for kind in ("text", "keys"))
        asked = {kind: found(rows, kind=kind)["answers"] for kind in ("needle", "keys")}
        counts = (
            sum(round(found(rows, kind=kind, way=way)["found"] * n) for kind, n in asked.items())
            for way in ("everything", "blocks", "newest")
        )
        more = (f"{nats(row['more'])} ({nats(row['more_se'])})" for row in (text, keys))
        sizes = f"{whole['length']:,}", f"{whole['budget']:,}", text["samples"]
        yield line(*sizes, *more, sum(asked.values()), *counts)


def blocks_ahead() -> Iterator[str]:
    """Nats that the chosen blocks save against the newest positions, beyond two errors."""
    for name, kind in product(LENGTHS, ("text", "needle", "keys", "variables")):
        lost = {
            (row["seed"], row["way"]): statistics.fmean(
                part["nats"] / part["tokens"] for part in row["parts"] if part["kind"] == kind
            )
            for row in report("quality", name)["rows"]
        }
        ahead = [one - lost[seed, "blocks"] for (seed, way), one in lost.items() if way == "newest"]
        if abs(statistics.fmean(ahead)) > 2 * statistics.stdev(ahead) / len(ahead) ** 0.5:
            yield mean(ahead)
