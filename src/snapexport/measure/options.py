"""Holds the options of `snapexport eval` and `bench`, from which flags and defaults are made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from snapexport.contract.graph_options import require_one_of
from snapexport.errors import UserError, require_fields
from snapexport.measure.eval.tasks import TASKS
from snapexport.runtime.engine.open_executor import Device, Precision

BenchBackend = Literal["onnxruntime", "openvino"]
"""Backends on a CPU: the probes of the roofline run there."""

HaystackName = Literal["manual", "sentences"]
"""manual: the prose of Python's manual. sentences: nine sentences over and over, as RULER's noise,
which flatter every cache that votes."""

EvalBackend = Literal["onnxruntime", "onnxruntime-cuda", "openvino"]
"""Backends of the graphs: the other caches have no engines."""

MODES: Mapping[str, str] = {
    "aware": "question in the prompt",
    "agnostic": "question after compression",
    "late": "question repeated after other text",
}
"""aware: the question ends the prompt, so that its tokens vote.
agnostic: the question comes after the prompt was compressed.
late: as aware, and the question is repeated after so much other text that no ring holds any of the
prompt."""
DEFAULT_TASKS = "niah_single", "phrase_4", "niah_multikey", "qa"
"""A short answer and a long one, one among many like it, and one that is asked in other words."""
DEFAULT_MINUTES = 10
ABLE = 0.5
"""Least score of the full cache on a task that distinguishes caches."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Every choice of `snapexport eval`. None: chosen from the build. Lengths in tokens.

    tasks: None for DEFAULT_TASKS, or for none where documents are given. samples: for each
    task, length and depth. hit_samples: for each task, at the longest length. documents: files or
    folders of text. haystack: of tasks that hide needles in prose; None for the documents, or for
    the manual where there are none. continuation: 0 for none. instructions: each follows every
    prompt of the documents, and is answered in at most max_tokens. chat: whether tasks and
    instructions are asked in the chat template. backend, device, precision, threads: as those of
    `open_executor`. minutes: for the samples of tasks, 0 for no limit;
    None for no limit where any of the others is chosen, else for DEFAULT_MINUTES.
    """

    tasks: tuple[str, ...] | None = None
    lengths: tuple[int, ...] | None = None
    depths: tuple[float, ...] = (0.25, 0.75)
    samples: int = 1
    policies: tuple[str, ...] = ("full", "snapstream", "streaming")
    budgets: tuple[int, ...] | None = None
    modes: tuple[str, ...] = ("aware", "agnostic")
    hit_samples: int = 0
    documents: tuple[Path, ...] = field(default=(), metadata={"metavar": "PATH"})
    haystack: HaystackName | None = None
    passages: int = 8
    continuation: int = 64
    instructions: tuple[str, ...] | None = field(default=None, metadata={"metavar": "TEXT"})
    max_tokens: int = 200
    chat: bool | None = None
    seed: int = 0
    backend: EvalBackend = "onnxruntime"
    device: Device | None = None
    precision: Precision | None = None
    threads: int | None = None
    minutes: int | None = None

    def __post_init__(self) -> None:
        require_fields(self, tasks=None, depths=None, policies=None, modes=None, instructions=None)
        require_fields(
            self, lengths=1, budgets=1, samples=1, hit_samples=0, passages=1, continuation=0
        )
        require_fields(self, max_tokens=1, seed=0, threads=1, minutes=0)
        for task in self.chosen_tasks:
            require_one_of("--tasks", task, tuple(TASKS))
        for mode in self.modes:
            require_one_of("--modes", mode, tuple(MODES))
        if outside := [depth for depth in self.depths if not 0 <= depth <= 1]:
            raise UserError(
                f"--depths {outside[0]} is not a share of the context", "use 0 (start) to 1 (end)"
            )
        self._require_documents_in_use()

    @property
    def chosen_tasks(self) -> tuple[str, ...]:
        """The tasks to run; none where only documents are measured."""
        if self.tasks is None:
            return () if self.documents else DEFAULT_TASKS
        return self.tasks

    @property
    def chosen(self) -> set[str]:
        """Names of the fields that are not the defaults."""
        plain = EvalOptions()
        return {name for name, value in vars(self).items() if value != getattr(plain, name)}

    @property
    def running(self) -> dict[str, Any]:
        """The backend and its settings: arguments of `open_executor`."""
        names = "backend", "device", "precision", "threads"
        return {name: getattr(self, name) for name in names}

    @property
    def seconds(self) -> float:
        """The time for the samples of tasks; infinite without a limit."""
        minutes = self.minutes
        if minutes is None:
            measures = self.chosen - {"chat", "seed", *self.running}
            minutes = 0 if measures else DEFAULT_MINUTES
        return 60.0 * min(minutes, 1 << 40) or math.inf

    def _require_documents_in_use(self) -> None:
        if self.haystack and self.documents:
            raise UserError(
                f"--haystack {self.haystack} is not supported with --documents: they are the text "
                "around the needles",
                "leave one of them out",
            )
        if self.instructions and not self.documents:
            raise UserError(
                "--instructions are about --documents, but none were given",
                "give text files, or folders of them, as --documents",
            )
        if self.minutes and not self.chosen_tasks:
            raise UserError(
                f"--minutes {self.minutes} limits tasks, but none are run",
                "use fewer --passages, or name --tasks",
            )
        if self.documents and not (self.continuation or self.instructions or self.tasks):
            raise UserError(
                "--continuation 0 leaves nothing to measure on the --documents",
                "use --continuation 64, or give --instructions or --tasks",
            )


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Every choice of `snapexport bench`. None: chosen from the build.

    contexts: tokens of the prompts. batches: active batch slots. decode_steps: timed steps in a
    row, in each of `repeat` rounds. backend, precision, threads, prepack: as those of
    `open_executor`.
    """

    contexts: tuple[int, ...] | None = None
    batches: tuple[int, ...] | None = None
    decode_steps: int = 16
    repeat: int = 5
    baseline: bool = False
    backend: BenchBackend = "onnxruntime"
    precision: Precision | None = None
    threads: int | None = None
    prepack: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require_fields(self, contexts=1, batches=1, decode_steps=1, repeat=1, seed=0, threads=1)

    @property
    def running(self) -> dict[str, Any]:
        """The backend and its settings: arguments of `open_executor`."""
        names = "backend", "precision", "threads", "prepack"
        return {name: getattr(self, name) for name in names}
