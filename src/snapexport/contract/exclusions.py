"""The table of choices that do not go together, with why and what to do instead.

`build` and `plan` read it for flags, a manifest for what it says, and what runs a build for its
options; `tools/combinations.py` prints it as docs/reference/combinations.md. Range checks of a
single value are where the value is.

Facts are flags by field, and what is known of a model or a build. What is not known is absent.
"""

from collections.abc import Iterator
from dataclasses import replace

from snapexport.contract.build_rules import BUILD_RULES
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.rule import Facts, Rule
from snapexport.contract.run_rules import RUN_RULES
from snapexport.contract.targets import Target, capabilities
from snapexport.errors import UserError
from snapexport.files.dtypes import DType
from snapexport.methods import table


def rules() -> tuple[Rule, ...]:
    """Every rule: of builds, then of runs. A cache method has some of both."""
    return (*build_rules(), *run_rules())


def build_rules() -> tuple[Rule, ...]:
    """The rules of a build's flags."""
    return (*BUILD_RULES, *(rule for method in table.METHODS for rule in method.rules))


def run_rules() -> tuple[Rule, ...]:
    """The rules of what runs a build."""
    return (*RUN_RULES, *(rule for method in table.METHODS for rule in method.run_rules))


def require_compatible(facts: Facts) -> None:
    """Raise UserError for the first rule that the facts break."""
    if refused := refusal(facts):
        raise refused


def refusal(facts: Facts) -> UserError | None:
    """The error of the first rule that the facts break."""
    return next((rule.error(facts) for rule in broken(facts)), None)


def broken(facts: Facts) -> Iterator[Rule]:
    """The rules that the facts break, in the table's order."""
    return (rule for rule in rules() if rule.is_broken(facts))


def resolved(options: GraphOptions, target: Target, dtype: DType) -> GraphOptions:
    """A copy of graph options with defaults filled in.

    Raises UserError for what the target does not support, and for choices that exclude each other.
    """
    require_compatible({**table.flags_of(options), "target": target, "dtype": dtype})
    options.require_target(target)
    options = replace(
        options,
        cache_dtype=None if options.cache_dtype == dtype else options.cache_dtype,
        prompt_cache_dtype=None
        if options.prompt_cache_dtype == dtype
        else options.prompt_cache_dtype,
    )
    for method in table.METHODS:
        options = method.resolve(options, target, dtype)
    shares = options.share_weights
    return replace(
        options,
        decode_attention=options.decode_attention or "all",
        share_weights=capabilities(target).weights_per_graph if shares is None else shares,
    )
