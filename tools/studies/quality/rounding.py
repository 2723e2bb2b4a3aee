"""Measures what rounding of weights costs: transformers with the weights of `--weights int4|int8`.

Activations stay fp32, which a build rounds to 8 bits. "plain" is blocks of 32 around the middle,
whose value of largest magnitude is the lowest integer.

    python -m tools.studies.quality.rounding CHECKPOINT DOCUMENTS --out RESULT.json
"""

import argparse
import json
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from snapexport.build.layer_inputs import layer_inputs
from snapexport.build.options import BuildOptions
from snapexport.build.progress import Silent
from snapexport.build.resolved import ResolvedBuild, resolve
from snapexport.exporter.integers import IntegerWeight
from snapexport.exporter.integers.choice import Choice, of_flag
from snapexport.exporter.integers.parts import MINIMA, SCALES, shapes

Rounded = Callable[[str, Tensor], tuple[Tensor, float]]
"""The values of a weight, and its stored bits."""


def passages(folder: Path, tokenizer: Any, count: int, length: int) -> list[Tensor]:
    """One of each text, from a third of it on."""
    found = []
    for file in sorted(folder.rglob("*.txt"))[:count]:
        text = file.read_text(errors="replace")
        start = len(text) // 3
        ids = tokenizer(text[start : start + 8 * length]).input_ids[:length]
        found += [torch.tensor(ids)] if len(ids) == length else []
    return found


def plain(_: str, weight: Tensor) -> tuple[Tensor, float]:
    """To the nearest of 16 multiples of a block's scale, in blocks of 32."""
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 32))
    blocks = padded.reshape(len(weight), -1, 32)
    low, high = blocks.amin(-1, True), blocks.amax(-1, True)
    scales = torch.where(-low > high, low, high) / -8
    values = (blocks / scales).round().clamp(-8, 7).nan_to_num(0) * scales
    return values.flatten(1)[:, : weight.shape[1]], 5.0 * weight.numel()


def product(resolved: ResolvedBuild, choice: Choice) -> Rounded:
    """As a build rounds."""

    def rounded(name: str, weight: Tensor) -> tuple[Tensor, float]:
        made = choice.of(name, resolved.checkpoint.tensors[name])
        assert isinstance(made, IntegerWeight), name
        flat = np.concatenate(list(made.blocks(1, 1 << 22)))
        of_parts = shapes(made.form, made.shape).items()
        bits = 8 * sum(prod(one) * (4 if end in (SCALES, MINIMA) else 1) for end, one in of_parts)
        return torch.from_numpy(flat).reshape(weight.shape), bits

    return rounded


def likelihoods(model: Any, texts: list[Tensor]) -> Iterator[Tensor]:
    """The log likelihoods of all tokens after each token [T,V], text by text."""
    for text in texts:
        yield torch.log_softmax(model(text[None]).logits[0].float(), -1)


def nats(found: Tensor, text: Tensor) -> float:
    """The mean loss of a text's tokens."""
    return -found[:-1].gather(1, text[1:, None]).mean().item()


@torch.no_grad()
def measure(model: str, folder: Path, count: int, length: int) -> Iterator[dict[str, Any]]:
    """The loss of each rounding against fp32, one after another."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    texts = passages(folder, AutoTokenizer.from_pretrained(model), count, length)
    matrices = {n: one for n, one in reference.named_parameters() if one.ndim == 2}
    original = {name: one.clone() for name, one in matrices.items()}
    fp32 = [one.half() for one in likelihoods(reference, texts)]
    options = BuildOptions.of(model=model, out=Path("unwritten"), L_max=length, weights="int4")
    resolved = resolve(options)
    inputs = layer_inputs(resolved, Silent())
    ways: dict[str, Rounded] = {"plain int4": plain}
    for flag in ("int4", "int8"):
        ways[flag] = product(resolved, of_flag(flag, resolved.decoder, inputs))
    for name, rounded in ways.items():
        bits = 0.0
        for weight, values in original.items():
            made, stored = rounded(weight, values)
            bits += stored
            matrices[weight].copy_(made)
        losses, divergences = [], []
        for text, exact, found in zip(texts, fp32, likelihoods(reference, texts), strict=True):
            losses.append(nats(found, text) - nats(exact.float(), text))
            whole = exact.float()
            divergences.append((whole.exp() * (whole - found)).sum(-1).mean().item())
        yield {
            "rounding": name,
            "bits_per_weight": round(bits / sum(one.numel() for one in original.values()), 3),
            "passages": len(texts),
            "nats": round(float(np.mean(losses)), 4),
            "nats_se": round(float(np.std(losses, ddof=1) / len(losses) ** 0.5), 4),
            "kl": round(float(np.mean(divergences)), 4),
        }


def main() -> None:
    """Print a line for each rounding, and write them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("documents", type=Path)
    parser.add_argument("--passages", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = []
    for row in measure(given.checkpoint, given.documents, given.passages, given.tokens):
        print(json.dumps(row), flush=True)
        rows.append(row)
        given.out.write_text(json.dumps({"tokens": given.tokens, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
