"""Measures on texts how many positions each KV head of a layer should keep (AdaKV).

AdaKV (arXiv:2407.11550, Algorithm 1): of the votes of all heads of a layer together the H * K
highest are taken, and a head gets as many positions as it has among them. A safeguard mixes this
with equal budgets. AdaKV counts anew for each prompt; a static graph needs the mean over prompts.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import torch
from polygraphy.logger import G_LOGGER

from snapexport.compare.loop import Loop
from snapexport.compare.method import MethodMeasure, Prompts, Source
from snapexport.compare.reference import Attended
from snapexport.compare.votes import window_scores
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError
from snapexport.methods.head_budgets.groups import HeadBudget

SAFEGUARD = 0.2
"""AdaKV's alpha: the share of a head's budget that does not depend on its votes."""


def _require_votes(build: Build) -> None:
    """Raise UserError for a build without votes of single heads on a window."""
    geometry = build.manifest.geometry
    if "compress" not in build.manifest.graphs or not geometry.votes:
        raise UserError(
            f"{build.directory} has no vote to measure",
            "calibrate with a build of --policy snapstream that prefills chunk by chunk",
        )
    if geometry.slots.head_groups or geometry.vote.vote_queries != "prompt":
        raise UserError(
            f"{build.directory} has head groups, or other --vote-queries than prompt",
            "calibrate with a build of the same model without them",
        )
    build.require_run(command="calibrate")
    require_compatible({"head_budget": True, **build.manifest.model.features})
    if set(build.manifest.model.kv_heads) == {1}:
        raise UserError(
            f"the layers of {build.directory} have one KV head each: there is nothing to share",
            "use --budget uniform or pyramid",
        )


def measure_head_budget(
    build: Build, prompts: Sequence[Sequence[int]], on_prompt: Callable[[], None]
) -> HeadBudget:
    """The mean budgets of all prompts (token ids), by a build with single heads' votes on a window.

    on_prompt: called after each.
    """
    each = []
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL), Loop(build) as loop:
        for prompt in prompts:
            each.append(_of_prompt(build, loop, prompt))
            on_prompt()
    rows = [
        tuple(np.mean(of_layer, axis=0).tolist()) if of_layer[0] else ()
        for of_layer in zip(*each, strict=True)
    ]
    return HeadBudget(build.manifest.model.layer(0).kv_heads, tuple(rows))


def share_budget(votes: torch.Tensor, K: int) -> list[float]:
    """The budgets of one layer's heads, of mean K. votes: float [Hkv,n], of eligible positions."""
    heads, count = votes.shape
    best = votes.flatten().argsort(descending=True, stable=True)[: heads * K]
    won = np.bincount(best.numpy() // max(count, 1), minlength=heads)
    return [float((1 - SAFEGUARD) * share + SAFEGUARD * K) for share in won]


def _of_prompt(build: Build, loop: Loop, prompt: Sequence[int]) -> list[list[float]]:
    """The budgets of each layer's heads; none for a layer that does not vote."""
    states, scores = loop.prompt_states(prompt), _scores(build)
    geometry, found = build.manifest.geometry, list[list[float]]()
    for layer, shape in enumerate(geometry.layers):
        if not shape.K:
            found.append([])
            continue
        window, key = (
            torch.from_numpy(np.asarray(states[name], np.float32))[0]
            for name in (names.query_window(layer), names.present_key(layer))
        )
        attended = Attended(window, key[:, : len(prompt)], *scores[layer])
        span = range(shape.L_sink, len(prompt) - shape.L_recent)
        found.append(share_budget(window_scores(geometry.vote, attended, span), shape.K))
    return found


def _scores(build: Build) -> dict[int, tuple[float, float]]:
    """Scale and soft cap of each voting layer's scores, as the compress graph has them."""
    graph = onnx.load(build.graph("compress"), load_external_data=False).graph
    found = {}
    for node in graph.node:
        if node.op_type == "SnapKVSelect":
            attributes = {attribute.name: attribute.f for attribute in node.attribute}
            layer = int(node.output[0].rpartition(".")[2])
            found[layer] = attributes["scale"], attributes["softcap"]
    return found


class HeadBudgetMeasure(MethodMeasure):
    """Counts what each head needs, for `build --head-budget`."""

    def require(self, build: Build) -> None:
        _require_votes(build)

    def least(self, build: Build) -> int:
        return build.manifest.geometry.held_whole

    def calibrate(
        self, build: Build, prompts: Prompts, source: Source, on_prompt: Callable[[], None]
    ) -> tuple[str, Source, str]:
        budget = measure_head_budget(build, prompts, on_prompt)
        text = budget.text(source | {"cache_slots": build.manifest.geometry.held_whole})
        most = max(max(row) / (sum(row) / len(row)) for row in budget.layers if row)
        words = f"the head that needs most gets {most:.2f} times its layer's mean"
        return text, {"largest_share_of_mean": round(most, 2)}, words


MEASURE = HeadBudgetMeasure()
