"""Says which graphs give and take the window of a prompt's last queries."""

from snapexport.contract import names
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors
from snapexport.contract.vote import Voter
from snapexport.methods.method import Method

PROMPT_VOTER = Voter()


def windows(facts: GraphFacts) -> Specs:
    """query_window.{l} [1,H,W,D] of each layer with a cache."""
    W = facts.geometry.vote.L_obs
    return {
        names.query_window(index): (facts.prompt_dtype, (1, layer.heads, W, layer.query_dim))
        for index, layer in facts.model.cached.items()
    }


def gives_windows(facts: GraphFacts, kind: str) -> bool:
    """Whether a graph of a kind outputs the window: prefill in chunks does."""
    return kind == "prefill" and not facts.is_full and not facts.build.single_shot


def tensors(facts: GraphFacts, kind: str, common: Tensors) -> Tensors:
    """Prefill outputs the window, and the compress step takes it."""
    given = windows(facts) if kind == "compress" else {}
    return given, windows(facts) if gives_windows(facts, kind) else {}


WINDOW_VOTE = Method(
    name="window_vote",
    home=__package__,
    parts=("surgery",),
    # Where nothing is voted, the compress step takes the window too, and does not read it.
    is_on=lambda geometry, options: (
        geometry.compresses and (geometry.voter is None or geometry.voter.by_window)
    ),
    voters=(PROMPT_VOTER,),
    tensors=tensors,
)
