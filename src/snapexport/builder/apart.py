"""Refuses flags of a build that exclude each other."""

from collections.abc import Mapping
from typing import Any

from snapexport.contract.errors import UserError


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
            f"--extend is not supported with --vote-queries {queries}: a block's own queries vote "
            "on what it extends",
            "leave one of them out",
        )
    if queries == "repeat":
        _require_repetition(given)
    if given["tensor_parallel"] != 1:
        _require_ranks(given)


def _require_repetition(given: Mapping[str, Any]) -> None:
    """Raise UserError for what a repeated prompt's votes do not use."""
    if given["policy"] == "sage":
        raise UserError(
            "--policy sage lets the last token vote, and --vote-queries repeat all of them",
            "use --policy snapstream",
        )
    for field in ("L_obs", "vote", "softmax", "group"):
        if given[field]:
            flag = "--" + field.replace("_", "-")
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
    }
    if found := [flag for flag, value in named.items() if value]:
        raise UserError(
            f"{found[0]} is not supported with --tensor-parallel {ranks}",
            "leave one of them out",
        )
