"""What a contender needs of memory, in a process of its own: others would be counted too."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from snapexport.bench.contender import Contender, Entrant
from snapexport.bench.plan import Plan, Visit
from snapexport.bench.rounds import prompts
from snapexport.contract.errors import UserError


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. Resident: with the pages of mapped weight files; anonymous: of the process alone.

    empty: before loading, the interpreter and its libraries. peak: the most up to the end of the
    longest prompts and some steps; anonymous: at that end.
    """

    empty: int
    loaded: int
    peak: int
    anonymous_loaded: int
    anonymous: int

    def report(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


def measure(entrant: Entrant, plan: Plan, vocab_size: int) -> Memory:
    """Load it in a fresh interpreter, fill the slots with the longest prompts, decode."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(
        target=_tell, args=(theirs, entrant.load, plan, vocab_size), daemon=True
    )
    with _ctrl_c_ignored():  # by the child from its first moment: Ctrl-C is for us, and we end it
        child.start()
    theirs.close()
    try:
        told: Memory | tuple[str, str] = ours.recv()
    except EOFError:
        child.join()
        raise UserError(
            f"measuring the memory of {entrant.name} ended with status {child.exitcode}",
            "-9 is the system's: it needs more memory than there is, so use smaller --contexts",
        ) from None
    finally:
        child.kill()
        child.join()
    if not isinstance(told, Memory):
        raise UserError(*told)
    return told


def _tell(pipe: Connection, load: Callable[[], Contender], plan: Plan, vocab_size: int) -> None:
    """Memory, or a UserError's message and hint."""
    try:
        pipe.send(_used(load, plan, vocab_size))
    except UserError as error:
        pipe.send((error.message, error.hint))


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Children keep what is ignored when they are started."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def _used(load: Callable[[], Contender], plan: Plan, vocab_size: int) -> Memory:
    empty = status()
    contender = load()
    loaded = status()
    visit = Visit(0, 0, plan.contexts[-1])
    for slot, prompt in enumerate(prompts(plan, visit, vocab_size)):
        contender.prefill(slot, prompt)
    for _ in range(plan.decode_steps):
        contender.decode(plan.slots)
    end = status()
    return Memory(empty["VmRSS"], loaded["VmRSS"], end["VmHWM"], loaded["RssAnon"], end["RssAnon"])


def status() -> dict[str, int]:
    """Bytes of this process by the kernel's names; proc(5), /proc/pid/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    rows = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, _ in rows}
