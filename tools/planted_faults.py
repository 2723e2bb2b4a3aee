"""Plants faults one at a time in a copy of the repository, and reports whether tests catch them.

    python tools/planted_faults.py                  all faults, 15 minutes on 2 cores
    python tools/planted_faults.py --only ring      those whose name contains a word
    python tools/planted_faults.py --list           whether each fault's place is found, in a second

A fault is found by its text, wherever its file lies. It counts as caught if its tests fail with it;
before, the same tests must pass. The copy is a git worktree of HEAD: commit first.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("exporter", "graphs", "plugins", "runtime", "src/snapexport")


@dataclass(frozen=True)
class Fault:
    """`new` stands for `old`, which one file has once. tests: patterns of files below tests/."""

    name: str
    old: str
    new: str
    tests: tuple[str, ...]


GEOMETRY = ("contract/test_geometry.py",)
FUNCTIONS = ("graphs/test_functions.py",)
SCHEDULER = ("runtime/requests/test_scheduler.py",)
LLM = ("runtime/requests/test_llm.py",)
REPEAT = ("parity/test_parity_votes.py", "contract/test_vote_queries.py")

FAULTS = (
    # The cache's arithmetic.
    Fault(
        "geometry: the ring is one position off",
        "return self.L_sink + (position - self.L_sink) % self.ring_slots",
        "return self.L_sink + (position - self.L_sink + 1) % self.ring_slots",
        (*GEOMETRY, "plugins/test_geometry.py"),
    ),
    Fault(
        "geometry: one slot too many is valid",
        "return min(position + 1, self.L_sink + self.L_recent) + self.kept(prompt_length)",
        "return min(position + 2, self.L_sink + self.L_recent) + self.kept(prompt_length)",
        GEOMETRY,
    ),
    Fault(
        "graph: the ring wraps one step late",
        "turn = Mod (past_sinks, R)",
        "turn = Min (past_sinks, R)",
        FUNCTIONS,
    ),
    Fault(
        "graph: kept positions are not valid in decode",
        "valid_length = Add (in_window, kept)",
        "valid_length = Identity (in_window)",
        FUNCTIONS,
    ),
    Fault(
        "gather: the ring holds the position before the newest",
        "newest = Sub (prompt_length, one)\n  behind",
        "newest = Sub (prompt_length, zero)\n  behind",
        FUNCTIONS,
    ),
    # The vote.
    Fault(
        "vote: pads and the ring vote for themselves",
        "is_eligible = And (after_sinks, before_ring)",
        "is_eligible = Identity (after_sinks)",
        FUNCTIONS,
    ),
    Fault(
        "vote: positions are not ascending",
        "ascending, order = TopK <axis = -1, largest = 0, sorted = 1> (marked, k)",
        "ascending, order = TopK <axis = -1, largest = 1, sorted = 1> (marked, k)",
        FUNCTIONS,
    ),
    Fault(
        "vote: padding is left out of the average pool",
        "count_include_pad = 1>",
        "count_include_pad = 0>",
        ("graphs/test_functions.py", "parity/test_golden_parity.py"),
    ),
    Fault(
        "vote: the softcap is dropped",
        "scores = Mul (bent, softcap)",
        "scores = Identity (uncapped)",
        ("parity/test_parity_extend.py",),
    ),
    Fault(
        "vote: a causal row sees one position too many",
        "is_past = LessOrEqual (position, row_column)",
        "is_past = LessOrEqual (position, prompt_length)",
        ("parity/test_golden_parity.py",),
    ),
    Fault(
        "query window: it ends one query early",
        "rows = Add (first, offsets)",
        "past = Add (first, offsets)\n  rows = Sub (past, one)",
        FUNCTIONS,
    ),
    # Storage of caches and weights.
    Fault(
        "int8: one scale for all positions and channels",
        "largest = ReduceMax <keepdims = 1> (squares, position_axis)",
        "largest = ReduceMax <keepdims = 1> (squares, last_axis)",
        ("graphs/test_int8_cache.py",),
    ),
    Fault(
        "int8: rows wrap instead of being clipped",
        "clipped = Clip (whole, lowest, highest)",
        "clipped = Identity (whole)",
        ("graphs/test_int8_cache.py",),
    ),
    Fault(
        "manifest: a graph of another hash is accepted",
        "if sha256_of(path) != entry.sha256:",
        "if not entry.sha256:",
        ("contract/test_manifest.py", "parity/test_parity_contract.py", "build/test_staging.py"),
    ),
    Fault(
        "manifest: weights of another size are accepted",
        "if path.stat().st_size != weights.size:",
        "if path.stat().st_size < 0:",
        ("contract/test_manifest.py", "exporter/test_weights.py"),
    ),
    Fault(
        "staging: a foreign directory is overwritten",
        "return not any(target.iterdir()) or (target / marker).is_file()",
        "return True",
        ("build/test_staging.py",),
    ),
    Fault(
        "staging: what took an overwritten build's place meanwhile is replaced",
        "if _identity(replaced) != former or not _is_replaceable(replaced, marker):",
        "if not replaced.exists():",
        ("build/test_staging.py",),
    ),
    Fault(
        "lint: a TopK beyond the target's limit is accepted",
        "if not 0 < kept <= largest:",
        "if not 0 < kept:",
        ("build/test_lint.py",),
    ),
    # The runtime.
    Fault(
        "scheduler: a cancelled request keeps its batch slot",
        "self._free.add(self._running.pop(request_id))",
        "self._running.pop(request_id)",
        SCHEDULER,
    ),
    Fault(
        "pieces: the last chunk does not overlap the one before",
        "Piece(CHUNK, max(0, end - chunk), end, chunk)",
        "Piece(CHUNK, end - (end - 1) % chunk - 1, end, chunk)",
        SCHEDULER,
    ),
    Fault(
        "scheduler: a request moves and keeps its old slot",
        "            self._free.add(slot)\n            self._running[request_id] = target",
        "            self._running[request_id] = target",
        SCHEDULER,
    ),
    Fault(
        "loop: a move goes to the wrong slot",
        "self._executor.move(source, target)",
        "self._executor.move(target, source)",
        (*LLM, "build/test_decode_batches.py"),
    ),
    Fault(
        "loop: NaN of a broken request stays in its batch slot",
        'if delta.finish_reason == "error":\n            self._executor.',
        'if delta.finish_reason == "never":\n            self._executor.',
        (*LLM, "runtime/engine/test_*failures.py"),
    ),
    Fault(
        "repetition: a row does not see itself",
        "is_seen = LessOrEqual (position, row_column)",
        "is_seen = Less (position, row_column)",
        REPEAT,
    ),
    Fault(
        "repetition: the votes of another prompt stay",
        "for buffer in self.votes.values():\n            self._memory.zero(buffer)",
        "for buffer in ():\n            self._memory.zero(buffer)",
        REPEAT,
    ),
    Fault(
        "blocks: the end of a prompt does not vote on them",
        "voters = self._prefill.voters if end < len(prompt) else 0",
        "voters = 0",
        ("runtime/engine/test_blocks.py",),
    ),
    Fault(
        "blocks: tokens that only vote are kept",
        'node(graph, "And", [has_position, is_valid])',
        'node(graph, "And", [is_valid, is_valid])',
        ("parity/test_parity_extend.py",),
    ),
    Fault(
        "parked rows: a row of another session is used",
        "return session == others and longer[: len(tokens)] == tokens",
        "return longer[: len(tokens)] == tokens",
        ("runtime/requests/test_row_files.py",),
    ),
    Fault(
        "prompt cache: another prompt's chunk is taken as held",
        "return end <= len(self._held) and self._held[start:end] == list(token_ids)",
        "return end <= len(self._held)",
        ("runtime/engine/test_prompt_cache.py",),
    ),
    Fault(
        "prompt cache: an overlapped chunk still counts as held",
        "del self._held[aligned:]",
        "del self._held[len(self._held) :]",
        ("runtime/engine/test_prompt_cache.py",),
    ),
    Fault(
        "text: a stop string that is split over tokens is missed",
        "return self._release(len(self._held) - self._longest_beginning())",
        "return self._release(len(self._held))",
        ("runtime/requests/test_text.py",),
    ),
    Fault(
        "sampling: the seed is not used",
        "return np.random.default_rng(params.seed)",
        "return np.random.default_rng()",
        ("runtime/requests/test_sampling.py", *LLM),
    ),
    Fault(
        "sampling: top-p stops one token early",
        "needed = np.searchsorted(np.cumsum(descending), missing) + 1",
        "needed = np.searchsorted(np.cumsum(descending), missing)",
        ("runtime/requests/test_sampling.py",),
    ),
    Fault(
        "top tokens: in another order than their logits",
        "order = np.argsort(top_tokens.tokens[:count])",
        "order = np.argsort(top_tokens.logits[:count])",
        ("runtime/requests/test_top_tokens.py",),
    ),
    Fault(
        "top tokens: the normalizer forgets the temperature",
        '(offset,) = node(graph, "Div", [maximum, divisor])',
        '(offset,) = node(graph, "Identity", [maximum])',
        ("graphs/test_top_tokens.py",),
    ),
    # The servers.
    Fault(
        "server: a client that leaves does not cancel its request",
        "if not is_last:\n                self.worker.cancel(stream, CANCELLED)",
        "if is_last:\n                self.worker.cancel(stream, CANCELLED)",
        ("serving/openai/test_*.py", "serving/test_*.py"),
    ),
    Fault(
        "server: usage counts chunks instead of tokens",
        "self._completion += len(output.token_ids)",
        "self._completion += 1",
        ("serving/openai/test_*.py", "serving/test_*.py"),
    ),
    Fault(
        "worker: the place of an ended request is not given back",
        "self._accepted -= 1",
        "self._accepted -= 0",
        ("serving/test_worker.py", "serving/test_worker.py", "serving/triton/**/test_worker.py"),
    ),
    # The tensorrt target.
    Fault(
        "tensorrt: a chunk's attention has no mask",
        "read = [folded, *states, *mask]",
        "read = [folded, *states]",
        ("graphs/test_target_tensorrt.py",),
    ),
    # The kernels.
    Fault(
        "kernel: ties go to the higher position",
        "const int ties = before.equal + (sum.before >> 16);",
        "const int ties = threshold.wanted - 1 + 0 * (before.equal + (sum.before >> 16));",
        ("plugins/test_select.py",),
    ),
    Fault(
        "kernel: the halo of staged votes is one position off",
        "const int lowest = first - (p.pool_kernel - 1) / 2,",
        "const int lowest = first - p.pool_kernel / 2 - 1,",
        ("plugins/test_select.py",),
    ),
    Fault(
        "kernel: staged votes are read before all are written",
        "head_vote(votes, splits, p.T, lowest + i) : 0.0f;\n    }\n    __syncthreads();",
        "head_vote(votes, splits, p.T, lowest + i) : 0.0f;\n    }",
        ("plugins/test_select.py",),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """Result of a fault: caught, SURVIVED, or the reason why it was not tried."""

    fault: str
    verdict: str
    place: str = ""
    seconds: float = 0.0


def sources(root: Path) -> Iterator[Path]:
    """Files of the packages, each under one name: src/snapexport links to the others."""
    for package in PACKAGES:
        for folder, _, names in os.walk(root / package):
            for name in sorted(names):
                if name.endswith((".py", ".h", ".cu", ".cpp")):
                    yield Path(folder) / name


def find(root: Path, text: str) -> list[Path]:
    """The files that contain a text, each once for every occurrence."""
    return [file for file in sources(root) for _ in range(file.read_text().count(text))]


def tests_of(root: Path, fault: Fault) -> list[str]:
    """The existing test files that a fault's patterns match."""
    return sorted({str(file) for one in fault.tests for file in root.glob(f"tests/{one}")})


def pass_tests(root: Path, tests: list[str]) -> bool:
    """Run test files up to the first failure. Traces come from this repository's cache."""
    cache = f"cache_dir={ROOT / '.pytest_cache'}"
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-o", cache, *tests]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # neither passed nor failed: nothing was tested
        raise SystemExit(f"error: {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def verdict(root: Path, fault: Fault, passing: set[str]) -> Verdict:
    """Plant a fault, run its tests, and revert it. passing: tests that passed without faults."""
    places, tests = find(root, fault.old), tests_of(root, fault)
    if len(places) != 1:
        return Verdict(fault.name, f"not planted: its text is found {len(places)} times")
    if not tests:
        return Verdict(fault.name, "not planted: its tests are not found")
    (place,) = places
    shown = str(place.relative_to(root))
    fresh = [test for test in tests if test not in passing]
    if fresh and not pass_tests(root, fresh):
        return Verdict(fault.name, "not planted: its tests fail without it", shown)
    passing.update(fresh)
    before, start = place.read_text(), time.monotonic()
    place.write_text(before.replace(fault.old, fault.new))
    try:
        survived = pass_tests(root, tests)
    finally:
        place.write_text(before)
    seconds = round(time.monotonic() - start, 1)
    return Verdict(fault.name, "SURVIVED" if survived else "caught", shown, seconds)


@contextmanager
def scratch_copy() -> Iterator[Path]:
    """A git worktree of HEAD that goes at the end."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(root)], check=True, capture_output=True)
        try:
            yield root
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)


def list_places(faults: list[Fault]) -> bool:
    """Print where each fault would be planted; whether all have one place and a test."""
    sound = True
    for fault in faults:
        places, tests = find(ROOT, fault.old), tests_of(ROOT, fault)
        shown = ", ".join(str(place.relative_to(ROOT)) for place in places) or "NOWHERE"
        print(f"{fault.name}: {shown}; {len(tests)} test files")
        sound = sound and len(places) == 1 and bool(tests)
    return sound


def main() -> None:
    """Print a verdict a line, then one JSON line; exit 1 where a fault was not caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="faults whose name contains it")
    parser.add_argument("--list", action="store_true", help="only print where faults are planted")
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if arguments.only in fault.name]
    if arguments.list:
        raise SystemExit(not list_places(faults))
    verdicts, passing = [], set[str]()
    with scratch_copy() as root:
        for fault in faults:
            verdicts.append(one := verdict(root, fault, passing))
            print(f"{one.verdict}: {one.fault} ({one.place}, {one.seconds} s)", flush=True)
    print(json.dumps([asdict(one) for one in verdicts]))
    raise SystemExit(any(one.verdict != "caught" for one in verdicts))


if __name__ == "__main__":
    main()
