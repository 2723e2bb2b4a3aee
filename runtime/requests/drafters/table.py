"""Lists the drafters of an executor whose steps may check several tokens. A further one is a row.

Of those that take no time, the first one that speaks for a request is heard.
"""

from collections.abc import Callable

from snapexport.runtime.engine.batch_executor import BatchExecutor
from snapexport.runtime.requests.drafters.continuation import Continuation
from snapexport.runtime.requests.drafters.drafter import Drafter
from snapexport.runtime.requests.drafters.mtp import MtpDrafter
from snapexport.runtime.requests.drafters.prompt_lookup import PromptLookup

MakeDrafter = Callable[[BatchExecutor], Drafter | None]

DRAFTERS: tuple[MakeDrafter, ...] = (
    lambda _: Continuation(),
    lambda _: PromptLookup(),
    lambda executor: MtpDrafter(executor.drafts) if executor.drafts else None,
)
