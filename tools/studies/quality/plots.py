"""Draws the pictures of docs/quality.md from results/.

python -m tools.studies.quality.plots
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from snapexport.measure.plots import legend_beside, look, panels, write

RESULTS = Path(__file__).parent / "results"
ASSETS = Path(__file__).parents[3] / "docs" / "assets"

TEXTS = {
    "SmolLM2-135M": ("real_model_text", "real_model_text_4096", "real_model_text_8000"),
    "Qwen2.5-Coder-0.5B": ("qwen_text", "qwen_text_4000", "qwen_text_8000"),
}
WEIGHTS = {"SmolLM2-135M": "weights_smollm2", "Qwen2.5-Coder-0.5B": "weights_qwen"}


def report(name: str) -> Any:
    """A result by its name; None if it was not measured."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def text() -> Figure:
    """Nats lost by the share of the prompt that has a slot: our vote against the newest alone."""
    figure, axes = panels(len(TEXTS), width=3.2, sharey=True)
    for panel, (model, names) in zip(axes, TEXTS.items(), strict=True):
        rows = [row for name in names for row in (report(name) or {}).get("continuations", ())]
        lengths = sorted({row["length"] for row in rows})
        for (index, length), system in product(enumerate(lengths), ("snapstream", "streaming")):
            found = [row for row in rows if (row["length"], row["system"]) == (length, system)]
            found.sort(key=lambda row: -row["slots"])
            panel.errorbar(
                [row["slots"] / _power(length) for row in found],
                [row["loss"] for row in found],
                [row["loss_stderr"] for row in found],
                label=f"{length:,} tokens, {'SnapStream' if system == 'snapstream' else system}",
                linestyle="-" if system == "snapstream" else ":",
                **look(index),
            )
        panel.set(title=model, xlabel="cache slots / prompt", xscale="log")
        panel.set_xticks([2.0**-n for n in range(1, 6)], [f"1/{2**n}" for n in range(1, 6)])
        panel.minorticks_off()
        panel.legend(frameon=False, fontsize=6)
    axes[0].set(ylabel="nats a token lost", ylim=(0, None))
    return figure


def _power(length: int) -> int:
    """Budgets are shares of the next power of two."""
    return int(2 ** (length - 1).bit_length())


def weights() -> Figure:
    """Nats lost by bits a weight."""
    figure, axes = panels(len(WEIGHTS), width=3)
    for panel, (model, name) in zip(axes, WEIGHTS.items(), strict=True):
        for row in (report(name) or {"rows": ()})["rows"]:
            library, _, form = row["weights"].partition(" ")
            index = ("snapexport", "llama.cpp", "onnxruntime-genai").index(library.strip(","))
            x, y = row["bits_per_weight"], row["kl"]
            panel.plot(x, y, linestyle="", **look(index))
            panel.annotate(form, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=6)
        panel.set(title=model, xlabel="bits a weight", yscale="log")
    axes[0].set(ylabel="KL divergence from fp32, nats")
    for index, library in enumerate(("snapexport", "llama.cpp", "onnxruntime-genai")):
        axes[-1].plot([], [], linestyle="", label=library, **look(index))
    legend_beside(axes[-1])
    return figure


if __name__ == "__main__":
    write([("quality_text", text()), ("quality_weights", weights())], ASSETS, ["png"])
