"""`long_answer`: niah_multiquery with so many keys that the answer outgrows a ring.

Not RULER's. An answer shorter than the ring can be right although the decode cache lost what it
had before; here the last numbers are looked up after the ring has turned.
"""

from tokenizers import Tokenizer

from snapexport.eval.tasks.draws import Draws
from snapexport.eval.tasks.fitting import most
from snapexport.eval.tasks.niah import NEEDLES
from snapexport.eval.tasks.niah_multiquery import NiahMultiquery
from snapexport.eval.tasks.sample import Sample
from snapexport.eval.tasks.spelling import continuing_ids
from snapexport.eval.tasks.writing import require_spells


class LongAnswer(NiahMultiquery):
    """niah_multiquery with the fewest keys, but four, whose reference has `answer_tokens`."""

    def __init__(self) -> None:
        super().__init__("long_answer")

    def sample(
        self,
        tokenizer: Tokenizer,
        seed: int,
        tokens: int,
        depth: float | None = None,
        answer_tokens: int = 0,
    ) -> Sample:
        require_spells(tokenizer, self)
        queries = self._fewest(tokenizer, seed, answer_tokens)
        return NiahMultiquery(self.name, queries).sample(tokenizer, seed, tokens, depth)

    def _fewest(self, tokenizer: Tokenizer, seed: int, answer_tokens: int) -> int:
        """The fewest keys whose reference is long enough."""

        def reference_tokens(more: int) -> int:
            task = NiahMultiquery(self.name, NEEDLES + more)
            haystack = task.haystack(Draws(self.name, seed))
            return len(continuing_ids(tokenizer, haystack.question, haystack.reference))

        if reference_tokens(0) >= answer_tokens:
            return NEEDLES
        return NEEDLES + 1 + most(reference_tokens, answer_tokens - 1, guess=NEEDLES)
