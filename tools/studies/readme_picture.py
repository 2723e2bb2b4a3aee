"""Draws docs/assets/overview.png, the picture of the README.

Left: the decode steps of tools/studies/speed/results/context.json. Right: positions of one prompt
that the bundled checkpoint's cache holds after prefill, from a build made on the spot. It measures
nothing.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from snapexport.builder import build
from snapexport.contract.build_directory import Build
from snapexport.measure.plots import COLOURS, STYLE
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from snapexport.vault import CHECKPOINT, VaultPrompt, make_prompt

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "tools/studies/speed/results/context.json"
PICTURE = ROOT / "docs" / "assets" / "overview.png"

PROMPT_TOKENS, KV_BUDGET, SEED = 2048, 256, 1
FULL, COMPRESSED, KEPT, RING, SINK, ENTRY = COLOURS[4], COLOURS[0], *COLOURS[1:4], COLOURS[6]


def main() -> None:
    """Draw both halves into one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURE, metavar="FILE")
    arguments = parser.parse_args()
    with pyplot.rc_context(STYLE):
        figure, (steps, cache) = pyplot.subplots(
            1, 2, figsize=(10, 3.4), gridspec_kw={"width_ratios": [1, 1.5]}
        )
        draw_steps(steps, json.loads(RESULT.read_text()))
        draw_cache(cache)
        figure.tight_layout()
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(arguments.out, bbox_inches="tight", metadata={"Software": None})


def draw_steps(axes: Axes, result: dict[str, Any]) -> None:
    """Plot milliseconds of a decode step by context, the full cache beside 1,024 cache slots."""
    for slots, label, colour, marker in (
        (None, "full cache", FULL, "s"),
        (1024, "SnapStream, 1,024 cache slots", COMPRESSED, "o"),
    ):
        decode = result.get("sections", result)["decode"]
        rows = [row for row in decode if row["kv_budget"] == slots]
        contexts = [row["context"] for row in rows]
        medians = [1000 * row["seconds"]["median"] for row in rows]
        axes.plot(contexts, medians, marker=marker, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2**10, 2**12, 2**14, 2**16, 2**17], ["1K", "4K", "16K", "64K", "128K"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens before the step")
    axes.set_ylabel("milliseconds a decode step")
    axes.set_title("Decode stays flat (125 M parameters, 2 CPU cores)")
    axes.legend(frameon=False)


def draw_cache(axes: Axes) -> None:
    """Draw a row for each layer and KV head: sinks, kept positions and ring of one prompt."""
    prompt = make_prompt(SEED, PROMPT_TOKENS)
    with tempfile.TemporaryDirectory() as scratch:
        llm, geometry = _run(Path(scratch) / "vault.build", prompt)
    rows = [head for layer in llm.executor.topk_positions() or [] for head in layer]
    place = geometry.layers[0]
    for row, positions in enumerate(rows):
        _mark(axes, row, np.arange(place.L_sink), SINK)
        _mark(axes, row, positions[positions >= 0], KEPT)
        _mark(axes, row, np.arange(PROMPT_TOKENS - place.L_recent, PROMPT_TOKENS), RING)
    first, last = _entry(llm, prompt)
    axes.axvspan(first - 4, last + 4, ymin=-0.04, ymax=1.04, color=ENTRY, alpha=0.15, lw=0)
    axes.annotate("the entry asked for", (last + 14, -0.62), fontsize=8)
    heads = len(rows) // len(geometry.layers)
    names = [f"layer {row // heads}, KV head {row % heads}" for row in range(len(rows))]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.45, -1)
    axes.set_xlim(-12, PROMPT_TOKENS + 8)
    axes.set_xlabel("position in the prompt")
    axes.set_title(f"What {place.cache_slots} cache slots hold of {PROMPT_TOKENS:,} tokens")
    legend = {"sinks": SINK, "kept by the vote": KEPT, "ring of the newest": RING}
    handles = [Patch(color=colour, label=label) for label, colour in legend.items()]
    axes.legend(
        handles=handles, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18)
    )


def _run(out: Path, prompt: VaultPrompt) -> tuple[LLM, Any]:
    """Build the bundled checkpoint and prefill the prompt."""
    build(CHECKPOINT, out, L_max=PROMPT_TOKENS, kv_budget=KV_BUDGET, batch=1)
    llm = LLM(out)
    llm.generate(prompt.text, SamplingParams(max_tokens=1))
    return llm, Build.open(out).manifest.geometry


def _mark(axes: Axes, row: int, positions: Any, colour: str) -> None:
    axes.vlines(positions, row - 0.38, row + 0.38, color=colour, lw=0.6)


def _entry(llm: LLM, prompt: VaultPrompt) -> tuple[int, int]:
    """Positions of the first and the last token of the entry that the prompt asks for."""
    line = f"\n{prompt.key}:{prompt.answer}"
    start = prompt.text.index(line) + 1
    assert llm.tokenizer is not None
    offsets = llm.tokenizer.encode(prompt.text).offsets
    inside = [
        i for i, (a, b) in enumerate(offsets) if a >= start and b <= start + len(line) and b > a
    ]
    return inside[0], inside[-1]


if __name__ == "__main__":
    main()
