"""Says what the vote of calibrated queries needs, and what it does not go with."""

from dataclasses import dataclass
from pathlib import Path

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import MethodOptions, option
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.rule import (
    FULL,
    KEEPS_ALL,
    LATENT,
    LEAVE_OUT,
    NO_TOPK,
    RANKS,
    SAGE,
    SINGLE_SHOT,
    STREAMING,
    Choice,
    Rule,
    some,
    without_window,
)
from snapexport.contract.vote import OPTIONS_OF_WINDOW, Voter
from snapexport.methods.head_budgets.spec import CHOICE as HEADS
from snapexport.methods.method import Calibration, Method, votes_by

VOTER = Voter(
    name="calibrated",
    help="the mean query of other texts, by --mean-queries",
    words="the mean query of texts",
    counts="TriAttention's",
    unused=OPTIONS_OF_WINDOW,
    default_window=1,
    votes_on_blocks=False,
)


@dataclass(frozen=True, kw_only=True)
class CalibratedOptions(MethodOptions):
    """mean_queries: the file of measured queries; a build's traces hold what it says."""

    mean_queries: Path | None = option(
        None,
        "file of mean queries, from `snapexport calibrate --mean-queries`",
        "cache",
        metavar="FILE",
        recorded=False,
        of_traces=True,
    )

    def require_model(self, model: ModelFacts) -> None:
        if self.mean_queries:
            from snapexport.methods.calibrated.queries import MeanQueries  # loads NumPy

            MeanQueries.read(self.mean_queries).require_model(model)


def vote_scores(model: ModelFacts, geometry: CacheGeometry, slots: int) -> int:
    """Bytes of the scores, and of the magnitudes of pairs."""
    heads = max(layer.heads for layer in model.layers)
    pairs = max(layer.kv_heads * layer.key_dim for layer in model.layers) // 2
    return (geometry.vote.L_obs * heads + pairs) * slots * 4


CHOICE = Choice(
    "--vote-queries calibrated",
    {"vote_queries": "calibrated", "mean_queries": True},
    lambda f: f.get("vote_queries") == "calibrated" or bool(f.get("mean_queries")),
)
_MEANS = some("--mean-queries", "mean_queries", True)
_NO_MEANS = Choice(
    "--mean-queries",
    {"mean_queries": None},
    lambda f: "mean_queries" in f and not f["mean_queries"],
    joined="without",
)
_OTHER_QUERIES = Choice(
    "--vote-queries {vote_queries}",
    {"vote_queries": "prompt"},
    lambda f: f.get("vote_queries") not in (None, "calibrated"),
)
_RULES = (
    Rule(_MEANS, FULL, KEEPS_ALL, LEAVE_OUT),
    Rule(_MEANS, STREAMING, NO_TOPK, LEAVE_OUT),
    Rule(CHOICE, SAGE, "there only the last token votes", "use --policy snapstream"),
    *without_window(CHOICE, "a position is worth its key's score by the mean query"),
    Rule(
        CHOICE,
        _NO_MEANS,
        "it votes by the mean queries of texts",
        "measure them with `snapexport calibrate BUILD --mean-queries --documents DIR --out FILE`",
    ),
    Rule(_MEANS, _OTHER_QUERIES, "they are for --vote-queries calibrated", LEAVE_OUT),
    Rule(CHOICE, LATENT, "its queries are not states of one head", LEAVE_OUT),
    Rule(HEADS, CHOICE, ""),
    Rule(CHOICE, RANKS, "", LEAVE_OUT),
    Rule(
        CHOICE,
        SINGLE_SHOT,
        "a single shot keeps no full-length cache of the prompt",
        "use a --prefill-chunk below --L-max",
    ),
)

CALIBRATED = Method(
    name="calibrated",
    home=__package__,
    parts=("surgery", "measure"),
    is_on=votes_by(VOTER),
    options=CalibratedOptions,
    voters=(VOTER,),
    implies_vote=lambda options: options.of(CalibratedOptions).mean_queries is not None,
    rules=_RULES,
    vote_scores=vote_scores,
    calibration=Calibration(
        "mean_queries",
        "measure queries before RoPE, for `build --mean-queries`",
        "mean_queries.json",
        "mean_queries",
    ),
)
