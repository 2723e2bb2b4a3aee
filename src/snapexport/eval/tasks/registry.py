"""All the tasks by name, and what may be asked of each."""

from itertools import islice

from tokenizers import Tokenizer

from snapexport.eval.tasks.fitting import most
from snapexport.eval.tasks.haystack import FIRST_GUESS
from snapexport.eval.tasks.kv import KeyValue
from snapexport.eval.tasks.lines import Lines
from snapexport.eval.tasks.long_answer import LongAnswer
from snapexport.eval.tasks.niah_multikey import NiahMultikey
from snapexport.eval.tasks.niah_multiquery import NiahMultiquery
from snapexport.eval.tasks.niah_multivalue import NiahMultivalue
from snapexport.eval.tasks.niah_single import NiahSingle
from snapexport.eval.tasks.passkey import Passkey
from snapexport.eval.tasks.spelling import Ids, continuing_ids
from snapexport.eval.tasks.task import Task
from snapexport.eval.tasks.vault import Vault
from snapexport.eval.tasks.vt import VariableTracking
from snapexport.eval.tasks.writing import require_spells

_ALL: tuple[Task, ...] = (
    NiahSingle(),
    NiahMultikey(),
    NiahMultivalue(),
    NiahMultiquery(),
    VariableTracking(),
    KeyValue(),
    Passkey(),
    Lines(),
    Vault(),
    LongAnswer(),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}


def filler(tokenizer: Tokenizer, task: str, seed: int, tokens: int) -> Ids:
    """Whole lines of a task's noise, at least `tokens` tokens and at most a line more.

    None of them contradicts the needles of the same seed's sample; no special tokens.
    """
    require_spells(tokenizer, TASKS[task])
    source = TASKS[task].noise(seed)
    noise: list[str] = []

    def ids(lines: int) -> Ids:
        noise.extend(islice(source, max(0, lines - len(noise))))
        return continuing_ids(tokenizer, "\n", "".join(noise[:lines]))

    lines = most(lambda n: len(ids(n)), tokens - 1, FIRST_GUESS) + 1
    return ids(lines) if tokens > 0 else ()
