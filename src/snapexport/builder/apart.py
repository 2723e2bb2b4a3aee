"""Refuses flags of a build that exclude each other."""

from typing import TYPE_CHECKING

from snapexport.contract.errors import UserError

if TYPE_CHECKING:
    from snapexport.builder.options import BuildOptions


def require_apart(options: "BuildOptions") -> None:
    """Raise UserError for two flags that are not supported together."""
    if options.share_weights and options.weights == "int4":
        raise UserError(
            "--share-weights is not supported with --weights int4: ONNX Runtime "
            "rearranges quantized weights, which it can do with a graph's own alone",
            "leave one of them out",
        )
    if options.share_weights and options.weights == "fp8":
        raise UserError(
            "--share-weights is not supported with --weights fp8: an engine would convert all "
            "of them to 32 bits at the start of each run, and hold that",
            "leave one of them out",
        )
    if options.link_weights and options.weights == "int4":
        raise UserError(
            "--link-weights is not supported with --weights int4: quantized weights are new files",
            "leave one of them out",
        )
    if options.extend and options.vote_queries == "pseudo":
        raise UserError(
            "--extend is not supported with --vote-queries pseudo: a block's own queries vote on "
            "what it extends",
            "leave one of them out",
        )
    if options.tensor_parallel != 1:
        _require_ranks(options)


def _require_ranks(options: "BuildOptions") -> None:
    ranks = options.tensor_parallel
    if ranks < 1:
        raise UserError(
            f"--tensor-parallel {ranks} is below 1", "use the number of ranks, or leave it out"
        )
    given = {
        f"--weights {options.weights}": options.weights,
        "--mtp": options.mtp,
        "--baseline": options.baseline,
        "--link-weights": options.link_weights,
        f"--tokens-per-step {options.tokens_per_step}": options.tokens_per_step > 1,
        f"--vote-queries {options.vote_queries}": options.vote_queries == "pseudo",
    }
    if found := [flag for flag, value in given.items() if value]:
        raise UserError(
            f"{found[0]} is not supported with --tensor-parallel {ranks}",
            "leave one of them out",
        )
