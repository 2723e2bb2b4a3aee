"""Opens and renders hostile chat templates, each of which must end in a text or a UserError.

python -m tests.fuzz_http.templates --count 600 --seed 0
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.chat.chat_template import ChatTemplate
from snapexport.runtime.chat.template_process import TemplateProcesses

SECONDS = 30.0
TALKS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "a" * 5000}, {"role": "user", "content": "{{ 7 * 7 }}\x00"}],
    [{"role": "user", "content": "x"}] * 500,
    [],
]
SEEDS = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}",
    "{%- for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
    "{{- m.content | trim | tojson }}{%- endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}{{ strftime_now('%Y') }}{{ raise_exception('no') if ns.n > 3 }}",
    "{% macro f(x) %}{{ x }}{{ caller() if caller }}{% endmacro %}{{ f(messages) }}",
)
PIECES = (
    "{{ 'x' * 999999999 }}",
    "{{ 9 ** 99999999 }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro g() %}{{ g() }}{% endmacro %}{{ g() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages | map(attribute='content') | list | join('x' * 9999) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ ('a' * 9999) | center(999999999) }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ lipsum(9999) }}",
    "{% include 'x' %}",
    "{% extends messages %}",
    "{% import 'os' as os %}",
    "{{ self }}{{ loop }}{{ namespace }}",
    "{{ strftime_now('%' * 9999) }}{{ strftime_now(1) }}",
    "{{ raise_exception({}) }}",
    "{{ undefined.attribute.more }}",
    "{{ " + "(" * 300 + "1" + ")" * 300 + " }}",
    "{% if " + "not " * 3000 + "1 %}{% endif %}",
    "{{ " + "-" * 5000 + "1 }}",
    "{% raw %}",
    "{#",
    "\x00\ud800",
    "{{ 1 / 0 }}",
    "{{ [1] * 99999999 }}",
    "{{ messages[0].content | replace('', 'a' * 99999) | replace('', 'a' * 99999) }}",
    "{{ messages | tojson(indent=99999999) }}",
    "{{ messages | sort | batch(0) | list }}",
)


def hostile(chance: random.Random) -> str:
    """A template with hostile pieces in it, or with letters changed."""
    source = chance.choice(SEEDS)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(source) + 1)
        kind = chance.randrange(3)
        if kind == 0:
            source = source[:at] + chance.choice(PIECES) + source[at:]
        elif kind == 1:
            source = source[:at] + source[at + chance.randint(1, 9) :]
        else:
            source = source[:at] + chance.choice("{}%#|()[]'\"\\-.") + source[at:]
    return source


def outcome(source: str, talk: list[dict[str, str]]) -> str:
    """`text` or `refused`; any other exception is a defect and is raised."""
    processes = None
    try:
        processes = TemplateProcesses(ChatTemplate(source, {"bos_token": "<s>"}))
        return "text" if isinstance(processes.render(talk, True), str) else "no text"
    except UserError:
        return "refused"
    finally:
        if processes:
            processes.close()


def run(seed: int, count: int) -> dict[str, Any]:
    """Count the outcomes; `wrong` has the defects."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    slowest = 0.0
    for index in range(count):
        chance = random.Random(f"{seed}:{index}")
        source, talk = hostile(chance), chance.choice(TALKS)
        started = time.monotonic()
        try:
            counts[outcome(source, talk)] += 1
        except Exception as error:
            wrong.append(f"{seed}:{index} {type(error).__name__}: {error}"[:300])
        took = time.monotonic() - started
        slowest = max(slowest, took)
        if took > SECONDS:
            wrong.append(f"{seed}:{index} took {took:.0f} s")
    failed = {"failed": len(wrong), "wrong": wrong[:20]}
    return {"tried": count, **failed, "outcomes": dict(counts), "slowest_s": round(slowest, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=600)
    arguments = parser.parse_args()
    report = run(arguments.seed, arguments.count)
    print("\n".join(report.pop("wrong")), file=sys.stderr)
    print(json.dumps(report))
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
