"""Measures on texts how many positions each KV head of the model should keep.

A position is worth to a KV head what the text's own repetition attends to it (KVzip,
arXiv:2505.23416). Of all layers and heads together the best positions are chosen, as many as the
build keeps of a text of that length. A head's budget is its mean share of them: a few heads look
things up and keep most of a text, and most keep next to nothing.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from snapexport.compare.documents import manual, open_tokenizer, passages, read_documents
from snapexport.compare.loaders import Array
from snapexport.compare.method import MethodMeasure, Source, Texts
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.errors import UserError
from snapexport.methods.head_budgets.groups import HeadBudget
from snapexport.methods.head_budgets.spec import FEW, HeadBudgetOptions
from snapexport.methods.repeat.measure import attention_of, repeating, require_repeats

LEAST = 64
"""Tokens of a text whose shares would be mostly rounding."""
PASSAGES, TOKENS = 8, 2048
"""Of the texts that a build measures."""


def choose(scores: Mapping[int, Array], total: int) -> dict[int, list[int]]:
    """How many of the `total` best positions each head of each layer has.

    scores: by layer, [Hkv,n]. Equal ones go to the earlier layer, head and position.
    """
    flat = np.concatenate([one.ravel() for one in scores.values()])
    is_best = np.zeros(flat.size, bool)
    is_best[np.argsort(-flat, kind="stable")[:total]] = True
    ends = np.cumsum([one.size for one in scores.values()])[:-1]
    parts = zip(scores.items(), np.split(is_best, ends), strict=True)
    return {n: part.reshape(one.shape).sum(1).tolist() for (n, one), part in parts}


def share_of_text(
    geometry: CacheGeometry, scores: Mapping[int, Array], length: int
) -> dict[int, list[float]]:
    """Each head's share of the positions that are kept of a text.

    The ring and K are to the text as they are to L_max. scores: by layer, [Hkv,length].
    """
    part, first = length / geometry.L_max, geometry.widest[next(iter(scores))]
    held = zip(geometry.slots.caches, geometry.layers, strict=True)
    heads = {layer: len(one) for layer, one in scores.items()}
    kept = sum(shape.K * one.count(heads[one.layer]) for one, shape in held if one.layer in heads)
    span = slice(first.L_sink, length - max(1, round(part * first.L_recent)))
    chosen = choose({n: one[:, span] for n, one in scores.items()}, max(1, round(part * kept)))
    return {layer: [count / length for count in row] for layer, row in chosen.items()}


class HeadBudgetMeasure(MethodMeasure):
    """Counts what each head needs, for `build --head-budget`."""

    def require(self, build: Build) -> None:
        """Raise UserError for a build that keeps no voted positions, or shows no scores."""
        if not build.manifest.geometry.votes:
            raise UserError(
                f"{build.directory} has no vote to measure",
                "calibrate with a build of --policy snapstream",
            )
        require_repeats(build)

    def least(self, build: Build) -> int:
        return min(LEAST, build.manifest.geometry.L_max - 1)

    def texts(self, build: Build, options: GraphOptions) -> Texts:
        given = options.of(HeadBudgetOptions).calibrate
        texts = read_documents(given) if given else [manual()]
        tokens = min(build.manifest.geometry.longest_prompt, TOKENS)
        chosen = passages(texts, open_tokenizer(build.directory), tokens, PASSAGES)
        return Texts(build, [one.ids for one in chosen])

    def calibrate(self, texts: Texts, source: Source) -> tuple[bytes, Source, str]:
        budget, found, words = self._budget(texts)
        geometry = texts.build.manifest.geometry
        source = source | {"L_max": geometry.L_max, "cache_slots": geometry.held_whole}
        return budget.text(source).encode(), found, words

    def _budget(self, texts: Texts) -> tuple[HeadBudget, Source, str]:
        """The budgets, and what is found of them, for programs and in words."""
        manifest = texts.build.manifest
        geometry, layers = manifest.geometry, manifest.model.num_hidden_layers
        with repeating(texts) as made:
            shares = [
                share_of_text(geometry, scores, len(prompt))
                for prompt, scores in zip(texts.prompts, attention_of(made, texts), strict=True)
            ]
        budget = mean_budget(shares, layers, geometry.L_max)
        every = sorted((one for row in budget.layers for one in row), reverse=True)
        quarter = sum(every[: -(-len(every) // 4)]) / max(sum(every), 1e-9)
        words = f"a quarter of the heads gets {quarter:.0%} of the kept positions"
        if len(every) < FEW:
            words += f". Only {len(every)} KV heads vote, and the default may keep more of use: "
            words += "compare the two with `snapexport eval`"
        return budget, {"share_of_a_quarter": round(quarter, 3)}, words


def mean_budget(
    shares: Sequence[Mapping[int, Sequence[float]]], layers: int, L_max: int
) -> HeadBudget:
    """The mean of texts' shares, as positions of a prompt of L_max tokens."""
    rows = {
        layer: tuple((np.mean([one[layer] for one in shares], axis=0) * L_max).tolist())
        for layer in shares[0]
    }
    kv_heads = max(map(len, rows.values()))
    return HeadBudget(kv_heads, tuple(rows.get(layer, ()) for layer in range(layers)))


MEASURE = HeadBudgetMeasure()
