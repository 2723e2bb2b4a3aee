"""Times steps with a prescribed form or penalties against free ones, and checks answers' validity.

python -m tools.studies.forms BUILD --answers 500

Needs the package jsonschema, which judges the answers. Prints one JSON object.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from snapexport import LLM, SamplingParams, StructuredOutputs

ENDLESS = StructuredOutputs(
    json={
        "type": "array",
        "minItems": 900,
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
    }
)
PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.2,
}
WAYS: dict[str, dict[str, Any]] = {
    "free": {},
    "penalties": PENALTIES,
    "form": {"structured_outputs": ENDLESS},
    "both": PENALTIES | {"structured_outputs": ENDLESS},
}
PROMPT = "List some people as JSON, with name and age. " * 8


def texts(most: int) -> dict[str, Any]:
    """A schema of short texts."""
    return {"type": "string", "maxLength": most}


def records(**fields: Any) -> dict[str, Any]:
    """A schema of objects with these fields."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


AGE = {"type": "integer", "minimum": 0, "maximum": 130}
PERSON = records(name=texts(20), age=AGE)
SCHEMAS: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"enum": ["red", "green", 3, None]},
    AGE,
    {"type": "number", "minimum": -1, "maximum": 1},
    texts(12),
    {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    PERSON,
    records(city=texts(16), people={"type": "array", "items": PERSON, "maxItems": 2}),
    {"type": "array", "items": AGE, "minItems": 2, "maxItems": 5},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
     "maxItems": 3},
    {"anyOf": [PERSON, {"type": "null"}]},
    records(kind={"const": "call"}, arguments=records(query=texts(20), top=AGE)),
    {"$defs": {"p": PERSON}, "type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2},
    {"type": "object", "properties": {"a": AGE, "b": texts(8)}, "additionalProperties": False},
    records(unit={"enum": ["C", "F"]}, place={"anyOf": [texts(10), {"type": "null"}]}),
    {"type": "object", "additionalProperties": AGE, "maxProperties": 2},
    {"type": "array", "prefixItems": [AGE, texts(5)], "minItems": 2, "items": False},
    records(x=records(y=records(z={"type": "array", "items": texts(4), "maxItems": 2}))),
]  # fmt: skip


class TimedExecutor:
    """An executor that adds up the seconds of its decode steps: this thread's, and the clock's."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.own = self.clock = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def decode(self, *inputs: Any) -> Any:
        own, clock = time.thread_time(), time.perf_counter()
        predictions = self._executor.decode(*inputs)
        self.own += time.thread_time() - own
        self.clock += time.perf_counter() - clock
        return predictions


def costs(llm: LLM, requests: int, steps: int, rounds: int) -> dict[str, Any]:
    """Of a token, by each way in turn: the host's processor time beside the graph.

    Processor time of this thread: it does not count what else the machine does.
    """
    timed = TimedExecutor(llm.executor)
    host: dict[str, list[float]] = {name: [] for name in WAYS}
    graph = []
    for _ in range(rounds):
        for name, more in WAYS.items():
            made = begun(timed, llm, requests, more)
            timed.own = timed.clock = 0.0
            started = time.thread_time()
            for _ in range(steps):
                assert len(made.step()) == requests
            host[name].append((time.thread_time() - started - timed.own) / steps / requests)
            graph.append(timed.clock / steps)
    free, step = min(host["free"]), min(graph)
    found: dict[str, Any] = {"graph_ms": round(1e3 * step, 2)}
    for name, each in host.items():
        more_seconds = min(each) - free
        found[name] = {
            "host_us": round(1e6 * min(each)),
            "more_us": round(1e6 * more_seconds),
            "share_of_step": round(requests * more_seconds / (step + requests * free), 3),
        }
    return found


def begun(executor: Any, llm: LLM, requests: int, more: dict[str, Any]) -> LLM:
    """An LLM all of whose requests decode."""
    made = LLM.from_executor(executor, llm.tokenizer)
    for seed in range(requests):
        params = SamplingParams(max_tokens=900, temperature=0.8, ignore_eos=True, seed=seed, **more)
        made.submit(PROMPT, params)
    while made.waiting or made.slots_used < requests:
        made.step()
    for _ in range(4):
        made.step()
    return made


def validity(llm: LLM, answers: int, max_tokens: int) -> dict[str, int]:
    """Answers at temperature 1 that ended by themselves, and those of them that are valid."""
    from jsonschema import Draft202012Validator, FormatChecker

    asked = [SCHEMAS[index % len(SCHEMAS)] for index in range(answers)]
    params = [
        SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0,
            seed=seed,
            structured_outputs=StructuredOutputs(json=schema),
        )
        for seed, schema in enumerate(asked)
    ]
    done = llm.generate([PROMPT] * answers, params)
    ended = [(one, schema) for one, schema in zip(done, asked, strict=True)
             if one.finish_reason == "stop"]  # fmt: skip
    valid = 0
    for one, schema in ended:
        checker = Draft202012Validator(schema, format_checker=FormatChecker())
        valid += checker.is_valid(json.loads(one.text))
    return {"answers": answers, "ended": len(ended), "valid": valid}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--max-tokens", type=int, default=500, help="of an answer that is judged")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    llm = LLM(given.build, threads=given.threads)
    report: dict[str, Any] = {}
    for requests in sorted({1, llm.max_num_seqs}):
        report[f"{requests} requests"] = costs(llm, requests, given.steps, given.rounds)
    report["validity"] = validity(llm, given.answers, given.max_tokens)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
