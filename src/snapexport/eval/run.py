"""An evaluation from its plan to its report. Knows no terminal."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from snapexport.eval import hit_rate, trials
from snapexport.eval.arena import Arena, arena
from snapexport.eval.journal import Journal
from snapexport.eval.plan import Plan
from snapexport.eval.report import described, results
from snapexport.eval.trials import Outcome

REPORT = "report.json"


def run(plan: Plan, out: Path | None, tell: Callable[[Outcome], None]) -> dict[str, Any]:
    """Ask everything, `tell` each outcome, and give the report; with `out`, on the disk as well.

    What `out` holds of the same evaluation is not asked again. Raises UserError.
    """
    outcomes: list[Outcome] = []
    with arena(plan.build, plan.options.threads) as loaded:
        for outcome in _outcomes(plan, loaded, out):
            outcomes.append(outcome)
            tell(outcome)
        hit_rates = hit_rate.measure(plan, loaded)
    report = _report(plan, outcomes, hit_rates)
    if out:
        (out / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    return report


def _outcomes(plan: Plan, loaded: Arena, out: Path | None) -> Iterator[Outcome]:
    """Those that `out` has, then fresh ones."""
    if out is None:
        yield from trials.run(plan, loaded)
        return
    journal = Journal(out, plan.fingerprint())
    yield from journal.outcomes
    known = frozenset(outcome.key for outcome in journal.outcomes)
    yield from journal.record(trials.run(plan, loaded, known))


def _report(
    plan: Plan, outcomes: list[Outcome], hit_rates: list[hit_rate.HitRate]
) -> dict[str, Any]:
    report = {
        "build": str(plan.build.directory),
        "model": plan.build.manifest.model.architecture,
        "options": asdict(plan.options) | {"lengths": plan.questions.lengths},
        "contestants": [described(one) for one in plan.contestants],
        "results": results(outcomes),
        "hit_rate": [rate.report() for rate in hit_rates],
    }
    read_back: dict[str, Any] = json.loads(json.dumps(report))  # lists, where there were tuples
    return read_back
