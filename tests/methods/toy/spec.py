"""A toy method: a flag, an output, a graph, prefill work and a rule, in one folder."""

from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_options import GraphOptions, MethodOptions, option
from snapexport.contract.graph_specs import GraphFacts, Tensors
from snapexport.contract.pieces import Piece
from snapexport.contract.rule import FULL, LEAVE_OUT, Rule, some
from snapexport.errors import UserError
from snapexport.methods.method import Method

PIECE, GRAPH = "toy", "toy"
SUM, LAST = "toy_sum", "last_position"


@dataclass(frozen=True, kw_only=True)
class ToyOptions(MethodOptions):
    toy_factor: int = option(0, "a number to multiply by; 0: none", "")

    def __post_init__(self) -> None:
        if self.toy_factor < 0:
            raise UserError(f"--toy-factor {self.toy_factor} is below 0", "use 0 for none")


@dataclass(frozen=True)
class ToyWork:
    def pieces(self, prompt_length: int, chunk: int) -> Sequence[Piece]:
        toy = Piece(PIECE, prompt_length, prompt_length, cost=3, only_votes=True)
        return [toy, toy] if prompt_length > chunk else []


def is_on(geometry: CacheGeometry, options: GraphOptions) -> bool:
    return options.of(ToyOptions).toy_factor > 0


def tensors(facts: GraphFacts, kind: str, common: Tensors) -> Tensors:
    return {}, {SUM: ("float32", (1,))} if kind == "prefill" and not facts.is_full else {}


def last(facts: GraphFacts) -> Tensors:
    return {names.PROMPT_LENGTH: ("int64", (1,))}, {LAST: ("int64", (1,))}


TOY = Method(
    name="toy",
    home="tests.methods.toy",
    parts=("surgery", "run"),
    is_on=is_on,
    options=ToyOptions,
    rules=(Rule(some("--toy-factor", "toy_factor", 3), FULL, "nothing is compressed", LEAVE_OUT),),
    tensors=tensors,
    kinds=(
        GraphKind(
            name=GRAPH,
            specs=last,
            built_if=lambda geometry, options, chunk: is_on(geometry, options),
            loaded_if=lambda run: run.compresses,
            traced_as="prefill",
            has_weights=False,
        ),
    ),
    further=lambda geometry: ToyWork(),
    words=lambda geometry, options: {"toy": f"times {options.of(ToyOptions).toy_factor}"},
)
