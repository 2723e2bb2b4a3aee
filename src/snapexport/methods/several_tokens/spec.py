"""Says what a step of several tokens takes: where it writes, and which positions slots hold."""

from dataclasses import dataclass

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_options import MethodOptions, option
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors
from snapexport.contract.rule import LEAVE_OUT, RANKS, STATEFUL, Choice, Facts, Rule, not_in_genai
from snapexport.errors import UserError, require_at_least
from snapexport.methods.method import Method

GRAPH = "verify"
MOST_TOKENS = 64


def place_inputs(shape: int) -> tuple[str, str]:
    """Names of write_slot and slot_positions.

    write_slot: int64 [B], the cache slot of a step's first token. slot_positions: int64 [B,S], the
    position that each cache slot holds once the step's tokens are written, -1 where empty; of a
    kept position any number from 0 on. shape: 0 for layers that are shaped like the first one, 1
    for the next shape, and so on.
    """
    suffix = f"_{shape + 1}" if shape else ""
    return f"write_slot{suffix}", f"slot_positions{suffix}"


@dataclass(frozen=True, kw_only=True)
class SeveralTokensOptions(MethodOptions):
    """tokens_per_step: q, which the manifest has in its geometry."""

    tokens_per_step: int = option(
        1,
        "most tokens of a batch slot in a decode step: further graphs check drafts of the next "
        "tokens, found in the prompt and in the output (default: 1)",
        "",
        recorded=False,
        planned=False,
    )

    def __post_init__(self) -> None:
        require_at_least("--tokens-per-step", self.tokens_per_step, 1)
        if self.tokens_per_step > MOST_TOKENS:
            raise UserError(
                f"--tokens-per-step {self.tokens_per_step} is above {MOST_TOKENS}",
                "use 4 to 8: drafts are rarely right for longer",
            )


def tensors(facts: GraphFacts, kind: str, common: Tensors) -> Tensors:
    """Where decode's steps write, for each shape of layers."""
    if kind not in ("decode", GRAPH) or facts.is_full:
        return {}, {}
    specs: Specs = {}
    for index, shape in enumerate(dict.fromkeys(facts.geometry.layers)):
        write_slot, slot_positions = place_inputs(index)
        specs[write_slot] = ("int64", (facts.batch,))
        specs[slot_positions] = ("int64", (facts.batch, shape.cache_slots))
    return specs, {}


def facts(geometry: CacheGeometry) -> Facts:
    """The flag, as the geometry has it."""
    return {"tokens_per_step": geometry.steps.tokens}


CHOICE = Choice(
    "--tokens-per-step {tokens_per_step}",
    {"tokens_per_step": 4},
    lambda f: f.get("tokens_per_step", 1) > 1,
)

SEVERAL_TOKENS = Method(
    name="several_tokens",
    home=__package__,
    parts=("surgery", "run", "measure"),
    is_on=lambda geometry, options: geometry.steps.several,
    options=SeveralTokensOptions,
    step_tokens=lambda options: options.of(SeveralTokensOptions).tokens_per_step,
    run_flags={"speculates": "draft no tokens; for builds made with --tokens-per-step"},
    rules=(
        Rule(
            CHOICE,
            STATEFUL,
            "wrong drafts are taken back, and a state takes each token once",
            LEAVE_OUT,
        ),
        Rule(CHOICE, RANKS, ""),
    ),
    run_rules=(not_in_genai(CHOICE),),
    facts=facts,
    report=lambda geometry, options: facts(geometry),
    tensors=tensors,
    kinds=(
        GraphKind(
            name=GRAPH,
            specs=lambda facts: facts.decode(facts.geometry.steps.tokens),
            built_if=lambda geometry, options, chunk: geometry.steps.several,
            loaded_if=lambda run: run.generates,
            rows="batch",
            sized_by="batch",
            checks_drafts=True,
        ),
    ),
)
