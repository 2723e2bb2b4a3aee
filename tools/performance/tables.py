"""The tables of docs/performance.md, from the experiments' JSON: no number is typed by hand."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from snapexport.contract.errors import UserError

from . import context, equal_memory, host, naive, overhead, peers
from .turns import Row

Report = dict[str, Any]
Lines = Iterator[str]

_WIDE = 0.2
"""Of the median."""


def block(name: str, directory: Path) -> str:
    """Tables and facts of one experiment, as Markdown."""
    # A run that was cut has not come to all sections.
    report = defaultdict(list, json.loads((directory / f"{name}.json").read_text()))
    return "\n".join([*_TABLES[name](report), "", *_facts(report)])


def write(page: Path, directory: Path) -> list[str]:
    """Put each block between its marks in the page; the names of those whose results are there."""
    if not page.is_file():
        raise UserError(f"{page} is not there", "name the page with the tables' places")
    text, written = page.read_text(), []
    for name in _TABLES:
        if (directory / f"{name}.json").is_file():
            start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
            before, found, rest = text.partition(start)
            _, ended, after = rest.partition(end)
            if not (found and ended):
                raise UserError(f"{page} has no place for {name}", f"mark it: {start}{end}")
            text = before + start + block(name, directory) + end + after
            written.append(name)
    page.write_text(text)
    return written


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Lines:
    """Numbers to the right: every column but the first."""
    yield f"| {' | '.join(heads)} |"
    yield "|---|" + "---:|" * (len(heads) - 1)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _facts(report: Report) -> Lines:
    """What the numbers were measured on, and how."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    rates = [row for row in report["rates"] if "bandwidth" in row and "matmul" in row]
    cut = "" if report["complete"] else " **The run was cut.**"
    yield (
        f"`{report['command']}`: {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, load before {machine['load_average'][0]}; "
        f"{versions}.{cut}"
    )
    if rates:
        yield (
            f"Probed: {_range(rates, 'bandwidth')} GB/s read, {_range(rates, 'matmul')} GFLOP/s. "
            f"Each time is the median of {_samples(report)}."
        )


def _samples(report: Report) -> str:
    """How many there are, from the row with the fewest to that with the most."""
    rows = [row for section in report.values() if isinstance(section, list) for row in section]
    found = [row["seconds"] for row in rows if isinstance(row, dict) and "seconds" in row]
    counts = sorted(spread["samples"] for spread in found if isinstance(spread, dict))
    return " to ".join(str(count) for count in dict.fromkeys(counts[:1] + counts[-1:])) or "none"


def _range(rates: list[Row], probe: str) -> str:
    """Medians of the parts of a run."""
    medians = sorted(row[probe]["median"] / 1e9 for row in rates)
    low, high = f"{medians[0]:.0f}", f"{medians[-1]:.0f}"
    return low if low == high else f"{low} - {high}"


def _by_context(report: Report) -> Lines:
    budgets = [None, *report["options"]["kv_budgets"]]
    rows = {(row["context"], row["kv_budget"]): row for row in report["decode"]}
    heads = ["context", *(head for b in budgets for head in (f"{_cache(b)}, ms", "x floor"))]
    heads += [f"full : {budget:,}" for budget in budgets[1:]]
    cells = []
    for at in report["options"]["contexts"]:
        found = [rows.get((at, budget)) for budget in budgets]
        timed = [cell for row in found for cell in (_ms(row), _times_floor(row))]
        cells.append([f"{at:,}", *timed, *(_ratio(found[0], row) for row in found[1:])])
    yield from table(heads, cells)


def _context(report: Report) -> Lines:
    yield from _by_context(report)
    yield ""
    for row in context.summary(report):
        yield (
            f"- {row['kv_budget']:,} slots, {row['from']:,} to {row['to']:,}: "
            f"steps differ by {row['spread']:.1%} at most"
        )


def _scale1b(report: Report) -> Lines:
    yield from _by_context(report)
    yield ""
    for row in report["build"]:
        yield f"- built in {row['seconds']:.1f} s"


def _equal_memory(report: Report) -> Lines:
    rates = {(r["context"], r["cache"]): r for r in equal_memory.summary(report)}
    heads = ["prompt", "cache", "requests", "caches, GiB", "step, ms", "x floor"]
    cells = []
    for row in report["decode"]:
        rate = rates[row["context"], row["cache"]]
        cells.append(
            [
                f"{row['context']:,}",
                row["cache"],
                f"{row['batch']}",
                f"{row['cache_bytes'] / 2**30:.2f}",
                _ms(row),
                _times_floor(row),
                f"{rate['tokens_per_second']:.1f}",
                *(f"{rate[one]:.2f}" if rate[one] else "" for one in ("times_full", "times_whole")),
            ]
        )
    yield from table([*heads, "tokens/s", "x full", "x 1/1"], cells)
    yield ""
    yield "SnapStream's Table 5 (DeepSeek-R1 on 16 SN40L sockets, 1/4):"
    yield ""
    heads = [
        "prompt",
        "requests, full",
        "requests, 1/4",
        "tokens/s, full",
        "tokens/s, 1/4",
        "x full",
    ]
    yield from table(
        heads,
        [
            [f"{prompt:,}", f"{few}", f"{many}", f"{slow:,}", f"{fast:,}", f"{fast / slow:.2f}"]
            for prompt, few, slow, many, fast in equal_memory.PAPER
        ],
    )


def _overhead(report: Report) -> Lines:
    heads = ["prompt", "L_max", "slots", "prefill, s", "of it run", "hand-over, ms", "of prefill"]
    found = overhead.summary(report)
    cells = [
        [
            f"{row['prompt']:,}",
            f"{row['L_max']:,}",
            f"{row['slots']:,}",
            f"{row['prefill_seconds']:.2f}",
            "yes" if row["prefilled"] else "no",
            f"{1e3 * row['hand_over_seconds']:.1f}",
            f"{row['share']:.2%}",
        ]
        for row in found
    ]
    yield from table(heads, cells)
    yield ""
    longest = max((row["L_max"] for row in found), default=0)
    for row in found:
        if row["prefilled"] and row["L_max"] == longest:
            yield (
                f"- {row['prompt']:,} tokens: integrated prefill is off by "
                f"{row['integrated_off_by']:+.1%} from the one that was run"
            )
    yield (
        f"- others: SnapStream's Table 4 {overhead.PAPER_SHARE:.1%} (128K), "
        f"the SnapKV change to mlx-lm {overhead.MLX_SHARE:.1%} (95K)"
    )


def _naive(report: Report) -> Lines:
    heads = ["slots", "target", "update", "step, ms", "x ring", "caches, MiB", "own memory, MiB"]
    memory = {(r["slots"], r["target"], r["update"]): r for r in report["memory"]}
    times = {(r["slots"], r["target"], r["update"]): r for r in naive.summary(report)}
    cells = []
    for row in report["decode"]:
        key = row["slots"], row["target"], row["update"]
        taken = memory.get(key)
        held = [_mib(taken[what]) for what in ("cache_bytes", "anonymous")] if taken else ["", ""]
        times_ring = f"{times[key]['times_ring']:.2f}"
        cells.append([f"{key[0]:,}", *key[1:], _ms(row), times_ring, *held])
    yield from table(heads, cells)


def _peers(report: Report) -> Lines:
    prompts, contexts = report["options"]["prompts"], report["options"]["contexts"]
    first = {(row["peer"], row["prompt"]): row for row in report["first_token"]}
    decode = {(row["peer"], row["context"]): row for row in report["decode"]}
    times = {(r["peer"], r["context"]): r["times_ours"] for r in peers.summary(report)}
    heads = ["", *(f"first token, {n:,}: s" for n in prompts)]
    heads += [head for n in contexts for head in (f"step, {n:,}: ms", "x SnapStream's")]
    cells = []
    for peer in (row["peer"] for row in report["versions"]):
        cells.append([peer, *(_seconds(first.get((peer, n))) for n in prompts)])
        for n in contexts:
            ratio = times.get((peer, n))
            cells[-1] += [_ms(decode.get((peer, n))), f"{ratio:.2f}" if ratio else ""]
    yield from table(heads, cells)
    yield ""
    for row in report["failed"]:
        yield f"- {row['peer']}: {row['why']}"
    pairs = {pair for row in report["versions"] for pair in row.items() if pair[0] != "peer"}
    if pairs:
        yield f"- versions: {', '.join(f'{name} {version}' for name, version in sorted(pairs))}"


def _host(report: Report) -> Lines:
    heads = ["sampling", "step, ms", "of it Python, ms", "share"]
    cells = [
        [
            row["sampling"],
            f"{1e3 * row['step_seconds']:.1f}",
            f"{1e3 * row['python_seconds']:.2f}",
            f"{row['share']:.1%}",
        ]
        for row in host.summary(report)
    ]
    yield from table(heads, cells)


def _cache(budget: int | None) -> str:
    return f"{budget:,} slots" if budget else "full"


def _ms(row: Row | None) -> str:
    """The median; with the middle half where that is wide."""
    if not row:
        return ""
    low, middle, high = (1e3 * row["seconds"][name] for name in ("q1", "median", "q3"))
    wide = high - low > _WIDE * middle
    return f"{middle:.1f} ({low:.1f} - {high:.1f})" if wide else f"{middle:.1f}"


def _seconds(row: Row | None) -> str:
    return f"{row['seconds']['median']:.2f}" if row else ""


def _times_floor(row: Row | None) -> str:
    return f"{row['ratio']:.2f}" if row and row["ratio"] else ""


def _ratio(one: Row | None, other: Row | None) -> str:
    if not one or not other:
        return ""
    return f"{one['seconds']['median'] / other['seconds']['median']:.2f}"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f}"


_TABLES: dict[str, Callable[[Report], Lines]] = {
    "context": _context,
    "equal_memory": _equal_memory,
    "overhead": _overhead,
    "naive": _naive,
    "peers": _peers,
    "peers1b": _peers,
    "scale1b": _scale1b,
    "host": _host,
}
