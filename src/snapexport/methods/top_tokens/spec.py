"""Says what graphs output for sampling, beside the logits."""

from dataclasses import dataclass
from typing import ClassVar

from snapexport.contract import names
from snapexport.contract.graph_options import MethodOptions, option
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.rule import not_in_genai, some
from snapexport.contract.targets import Target, capabilities
from snapexport.errors import UserError
from snapexport.methods.method import Method

OUTPUTS = names.Likeliest("top_tokens", "top_logits", "log_normalizer")


@dataclass(frozen=True, kw_only=True)
class TopTokensOptions(MethodOptions):
    """top_tokens: number of likeliest next tokens that the graphs output; 0: none."""

    on_full_cache: ClassVar[bool] = True

    top_tokens: int = option(
        0,
        "likeliest next tokens that the graphs output, so that a GPU need not copy all logits in "
        "each step; 0: none",
    )

    def __post_init__(self) -> None:
        if self.top_tokens < 0:
            raise UserError(
                f"--top-tokens {self.top_tokens} is below 0",
                "use 0 for none, or as many as the largest top-k of your requests",
            )

    def require_target(self, target: Target) -> None:
        record = capabilities(target)
        if record.largest_topk is not None and self.top_tokens > record.largest_topk:
            raise UserError(
                f"--top-tokens {self.top_tokens} is above {record.largest_topk}, the most that "
                f"{record.title}'s TopK gives",
                f"use --top-tokens {record.largest_topk} or less: other requests sample from the "
                "logits",
            )

    def require_model(self, model: ModelFacts) -> None:
        if self.top_tokens > model.vocab_size:
            raise UserError(
                f"--top-tokens {self.top_tokens} is above the model's vocabulary of "
                f"{model.vocab_size} tokens",
                "use as many as the largest top-k of your requests",
            )


def tensors(facts: GraphFacts, kind: str, common: Tensors) -> Tensors:
    """The top tokens of each row of logits."""
    if names.LOGITS not in common[1]:
        return {}, {}
    *rows, _ = common[1][names.LOGITS][1]
    count = facts.options.of(TopTokensOptions).top_tokens
    top: Specs = {
        OUTPUTS.tokens: ("int64", (*rows, count)),
        OUTPUTS.logits: ("float32", (*rows, count)),
        OUTPUTS.log_normalizer: ("float32", tuple(rows)),
    }
    return {names.TEMPERATURE: ("float32", tuple(rows[:1]))}, top


TOP_TOKENS = Method(
    name="top_tokens",
    home=__package__,
    parts=("surgery", "run"),
    is_on=lambda geometry, options: options.of(TopTokensOptions).top_tokens > 0,
    options=TopTokensOptions,
    tensors=tensors,
    likeliest=OUTPUTS,
    run_rules=(not_in_genai(some("--top-tokens {top_tokens}", "top_tokens", 64)),),
    report=lambda geometry, options: {"top_tokens": options.of(TopTokensOptions).top_tokens},
    words=lambda geometry, options: {
        "sampling": f"from {options.of(TopTokensOptions).top_tokens} top tokens, or from logits "
        "where these are too few"
    },
)
