"""The answers so far, on the disk as they come: a killed evaluation goes on where it was."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from snapexport.contract.errors import UserError
from snapexport.eval.trials import Outcome

JOURNAL = "samples.jsonl"


class Journal:
    """A line for each outcome, after a first one that says of which evaluation they are."""

    def __init__(self, directory: Path, fingerprint: str) -> None:
        """Open or begin the journal of `directory`. Raises UserError if it is another's."""
        self._path = directory / JOURNAL
        self.outcomes: list[Outcome] = []
        if self._path.is_file():
            self.outcomes = self._go_on(fingerprint)
        elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UserError(f"{directory} exists, and is no evaluation", "choose another --out")
        else:
            directory.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"fingerprint": fingerprint}) + "\n")

    def record(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Pass outcomes on, each once it is on the disk."""
        with self._path.open("a") as file:
            for outcome in outcomes:
                file.write(json.dumps(outcome.report()) + "\n")
                file.flush()
                yield outcome

    def _go_on(self, fingerprint: str) -> list[Outcome]:
        """What was answered; a line that a kill cut short is removed from the file."""
        written = self._path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        try:
            header, *rest = map(json.loads, whole.splitlines())
            known = header["fingerprint"]
            outcomes = [Outcome(**line) for line in rest]
        except (ValueError, KeyError, TypeError):
            known = None
        if known != fingerprint:
            raise UserError(
                f"{self._path.parent} holds another evaluation",
                "choose another --out, or go on with the same build, tasks and caches",
            )
        os.truncate(self._path, len(whole))
        return outcomes
