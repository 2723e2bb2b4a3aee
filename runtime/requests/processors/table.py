"""Lists the kinds of logit processors, in the order in which they change logits: vLLM's.

A mask may be last: what it leaves out is left out by any order.
"""

from collections.abc import Callable

from snapexport.runtime.requests.processors.bias import Bias
from snapexport.runtime.requests.processors.grammar_mask import GrammarMask
from snapexport.runtime.requests.processors.least_tokens import LeastTokens
from snapexport.runtime.requests.processors.penalties import Penalties
from snapexport.runtime.requests.processors.processor import Answer, LogitProcessor

PROCESSORS: tuple[Callable[[Answer], LogitProcessor | None], ...] = (
    LeastTokens.of,
    Bias.of,
    Penalties.of,
    GrammarMask.of,
)


def processors_of(answer: Answer) -> tuple[LogitProcessor, ...]:
    """Those that a request needs: none by default."""
    return tuple(made for make in PROCESSORS if (made := make(answer)))
