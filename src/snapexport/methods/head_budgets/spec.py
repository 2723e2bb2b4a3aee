"""Says which flags give KV heads budgets of their own, and what these do not go with."""

from dataclasses import dataclass
from pathlib import Path

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions, MethodOptions, option
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.rule import (
    FULL,
    KEEPS_ALL,
    LEAVE_OUT,
    NO_TOPK,
    RANKS,
    STATEFUL,
    STREAMING,
    Choice,
    Facts,
    Rule,
    flag,
    some,
)
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError, require_at_least
from snapexport.methods.head_budgets.groups import HeadBudget, with_head_groups
from snapexport.methods.method import Calibration, Method

DEFAULT_GROUPS = 4
"""Groups of a layer: each costs a decode step an attention of its own."""
FEW = 16
"""KV heads of all voting layers. In Gemma 3 270M, which has 3, budgets by head found less."""
BUDGET = "heads"
"""The value of --budget."""


@dataclass(frozen=True, kw_only=True)
class HeadBudgetOptions(MethodOptions):
    """head_budget: the file. calibrate: texts by which the build makes it, () for Python's manual.
    head_groups: most groups of a layer's KV heads.

    The manifest has the groups in its geometry.
    """

    head_budget: Path | None = option(
        None,
        "K of each KV head, in a JSON file (docs/reference/vote-options.md)",
        "cache",
        metavar="FILE",
        recorded=False,
    )
    calibrate: tuple[Path, ...] | None = option(
        None,
        "measure K of each KV head, over all layers, on text files or folders of them (default "
        "texts: Python's manual)",
        "",
        metavar="PATH",
        nargs="*",
        recorded=False,
        planned=False,
    )
    head_groups: int | None = option(
        None,
        f"most groups of a layer's KV heads: a group's heads keep as many positions (default: "
        f"{DEFAULT_GROUPS})",
        "cache",
        recorded=False,
    )

    def __post_init__(self) -> None:
        if self.head_groups is not None:
            require_at_least("--head-groups", self.head_groups, 1)
        for path in self.calibrate or ():
            if not path.exists():
                raise UserError(f"there is no {path} to calibrate on", "name a file or a folder")

    @property
    def most_groups(self) -> int:
        """Most groups of a layer's KV heads."""
        return self.head_groups or DEFAULT_GROUPS


def reshape(
    geometry: CacheGeometry, options: GraphOptions, model: ModelFacts, like: CacheGeometry | None
) -> CacheGeometry:
    """Share K among the heads of each layer: by a file, or as another geometry does."""
    if geometry.vote.budget != BUDGET:
        return geometry
    given = options.of(HeadBudgetOptions)
    if given.head_budget is not None:
        heads = HeadBudget.read(given.head_budget)
    elif like is not None and like.slots.head_groups:
        heads = HeadBudget.of(like, model)
    elif given.calibrate is not None:
        return geometry  # until the build has measured
    else:
        raise UserError(
            "--budget heads needs the budget of each KV head",
            "measure it with --calibrate, or give a file as --head-budget",
        )
    return with_head_groups(geometry, heads, model, given.most_groups)


def advice(geometry: CacheGeometry, model: ModelFacts) -> tuple[Facts, str] | None:
    """Measured budgets, where enough heads vote."""
    layers = zip(geometry.layers, model.kv_heads, strict=True)
    voting = sum(heads for layer, heads in layers if layer.K)
    found = {"calibrate": ()}, "for questions that come later"
    return found if voting >= FEW and geometry.vote.budget != BUDGET else None


def facts(geometry: CacheGeometry) -> Facts:
    """Whether heads have budgets, as the flags say it."""
    return {"head_budget": bool(geometry.slots.head_groups)}


_CALIBRATED = Choice("--calibrate", {"calibrate": ()}, lambda f: f.get("calibrate") is not None)
CHOICE = Choice(
    "--head-budget",
    {"head_budget": True},
    lambda f: bool(f.get("head_budget")) or f.get("budget") == BUDGET or _CALIBRATED.holds(f),
)
_EQUAL = Choice(
    "--budget {budget}", {"budget": "uniform"}, lambda f: f.get("budget") not in (None, BUDGET)
)
_NONE = Choice(
    "--head-budget",
    {"head_budget": None},
    lambda f: "head_budget" in f and not CHOICE.holds(f),
    joined="without",
)
_GROUPED = flag("head_groups", 2)
_ON_GPU = Choice(
    "--target {target}", {}, lambda f: "target" in f and capabilities(f["target"]).runs_on_gpu
)
_RULES = (
    Rule(
        _CALIBRATED,
        STATEFUL,
        "a repeated text is taken back, and a state takes each token once",
        "give a file of head budgets as --head-budget (docs/reference/vote-options.md)",
    ),
    Rule(
        _CALIBRATED,
        _ON_GPU,
        "it runs the graphs here",
        "calibrate with a build for ONNX Runtime, and give its file as --head-budget",
    ),
    Rule(_CALIBRATED, some("--head-budget", "head_budget", True), "it makes such a file"),
    Rule(CHOICE, FULL, KEEPS_ALL, LEAVE_OUT),
    Rule(_GROUPED, FULL, KEEPS_ALL, LEAVE_OUT),
    Rule(CHOICE, STREAMING, NO_TOPK, LEAVE_OUT),
    Rule(
        _GROUPED,
        _NONE,
        "it groups KV heads by their budgets",
        "give a file of head budgets as --head-budget (docs/reference/vote-options.md)",
    ),
    Rule(CHOICE, _EQUAL, "it shares K among KV heads"),
    Rule(CHOICE, RANKS, ""),
)

HEAD_BUDGETS = Method(
    name="head_budgets",
    home=__package__,
    parts=("surgery", "measure"),
    is_on=lambda geometry, options: bool(geometry.slots.head_groups),
    options=HeadBudgetOptions,
    budget=BUDGET,
    budget_help="K of each KV head, by --head-budget",
    reshape=reshape,
    rules=_RULES,
    facts=facts,
    measures=lambda geometry, options: options.of(HeadBudgetOptions).calibrate is not None,
    calibration=Calibration(
        "head_budgets",
        "measure K of each KV head, for `build --head-budget`: the default",
        "head_budgets.json",
        "head_budget",
        is_default=True,
    ),
    advice=advice,
)
