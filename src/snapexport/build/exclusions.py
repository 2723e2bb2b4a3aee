"""Refuses flags of a build that exclude each other."""

from collections.abc import Mapping
from typing import Any

from snapexport.contract.head_groups import MOST_GROUPS
from snapexport.errors import UserError, flag_of


def require_apart(given: Mapping[str, Any]) -> None:
    """Raise UserError for two flags that are not supported together. given: by field."""
    if given["share_weights"] and given["weights"] == "int4":
        raise UserError(
            "--share-weights is not supported with --weights int4: ONNX Runtime "
            "rearranges quantized weights, which it can do with a graph's own alone",
            "leave one of them out",
        )
    if given["share_weights"] and given["weights"] == "fp8":
        raise UserError(
            "--share-weights is not supported with --weights fp8: an engine would convert all "
            "of them to 32 bits at the start of each run, and hold that",
            "leave one of them out",
        )
    if given["link_weights"] and given["weights"] == "int4":
        raise UserError(
            "--link-weights is not supported with --weights int4: quantized weights are new files",
            "leave one of them out",
        )
    queries = given["vote_queries"] or "prompt"
    if given["extend"] and queries != "prompt":
        raise UserError(
            f"--extend is not supported with --vote-queries {queries}: the end of a block or "
            "of its prompt votes",
            "leave one of them out",
        )
    _require_head_groups(given)
    if queries == "repeat":
        _require_repetition(given)
    if given["tensor_parallel"] != 1:
        _require_ranks(given)


def _require_head_groups(given: Mapping[str, Any]) -> None:
    budget, most = given["budget"], given["head_groups"]
    is_shared = given["head_budget"] is not None or budget == "heads"
    if given["head_budget"] is not None and budget not in (None, "heads"):
        raise UserError(
            f"--head-budget shares K among KV heads, but --budget is {budget}",
            "leave one of them out",
        )
    if most is not None and not is_shared:
        raise UserError(
            f"--head-groups {most} groups KV heads by their budgets, and --head-budget is missing",
            "give a file of head budgets as --head-budget (docs/reference/vote-options.md)",
        )
    if most is not None and not 2 <= most <= MOST_GROUPS:
        raise UserError(
            f"--head-groups {most} is not from 2 to {MOST_GROUPS}",
            "use 2 to 4: each group costs a decode step an attention of its own",
        )
    if is_shared and given["vote_queries"] == "repeat":
        raise UserError(
            "--vote-queries repeat is not supported with --head-budget",
            "leave one of them out",
        )


def _require_repetition(given: Mapping[str, Any]) -> None:
    """Raise UserError for what a repeated prompt's votes do not use."""
    if given["policy"] == "sage":
        raise UserError(
            "--policy sage lets the last token vote, and --vote-queries repeat all of them",
            "use --policy snapstream",
        )
    for field in ("L_obs", "vote", "softmax", "group"):
        if given[field]:
            flag = flag_of(field)
            raise UserError(
                f"{flag} is not used with --vote-queries repeat: a position is worth the largest "
                "attention that any repeated token gives it",
                f"drop {flag}",
            )


def _require_ranks(given: Mapping[str, Any]) -> None:
    ranks = given["tensor_parallel"]
    if ranks < 1:
        raise UserError(
            f"--tensor-parallel {ranks} is below 1", "use the number of ranks, or leave it out"
        )
    named = {
        f"--weights {given['weights']}": given["weights"],
        "--mtp": given["mtp"],
        "--baseline": given["baseline"],
        "--link-weights": given["link_weights"],
        f"--tokens-per-step {given['tokens_per_step']}": given["tokens_per_step"] > 1,
        f"--vote-queries {given['vote_queries']}": given["vote_queries"] in ("pseudo", "repeat"),
        "--head-budget": given["head_budget"] is not None or given["budget"] == "heads",
    }
    if found := [flag for flag, value in named.items() if value]:
        raise UserError(
            f"{found[0]} is not supported with --tensor-parallel {ranks}",
            "leave one of them out",
        )
