"""Writes the page of model types (PAGE) from a run of tests/architectures.

`make architectures` runs both.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "architectures.md"

HEAD = """# Decoders of transformers

`make architectures` compares tiny random models of every type of causal language model that
transformers {version} has with transformers itself, and writes this page. {compared} of {all} types
are built and agree in fp32: greedy tokens, and logits to 1e-3, with the full cache and a compressed
one, and the positions that this keeps. {read} more are vision-language models around one of these.
{refused} are refused.
"""
COMPARED = """
## Built and compared

The largest difference of logits, over all forms of a type that have a test.

| type | difference |
|---|---|
"""
READ = """
## Built as their text part

| type | text part |
|---|---|
"""
REFUSED = """
## Refused

In the words of the refusal, for the defaults of the type's config.

| type | why |
|---|---|
"""


def main() -> None:
    """Write the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("results", type=Path, help="what pytest wrote by --junitxml")
    arguments.add_argument("--out", type=Path, default=PAGE, metavar="FILE")
    chosen = arguments.parse_args()
    chosen.out.write_text(render(chosen.results))


def render(results: Path) -> str:
    """The page of a run, all of whose tests passed."""
    outcomes: dict[str, dict[str, str]] = defaultdict(dict)
    for name, properties in _properties(results):
        for outcome, value in properties.items():
            kind = name.partition(".")[0]
            outcomes[outcome][kind] = max(outcomes[outcome].get(kind, value), value, key=_size)
    found = Counter({outcome: len(of_types) for outcome, of_types in outcomes.items()})
    head = HEAD.format(
        version=version("transformers"),
        all=found.total(),
        compared=found["difference"],
        read=found["text"],
        refused=found["reason"],
    )
    differences = {kind: f"{float(size):.0e}" for kind, size in outcomes["difference"].items()}
    parts = ((COMPARED, differences), (READ, outcomes["text"]), (REFUSED, outcomes["reason"]))
    return head + "".join(title + "".join(_rows(rows)) for title, rows in parts)


def _properties(results: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each test's model type, and what it noted."""
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            raise SystemExit(f"a test failed: {case.get('name')}")
        noted = {str(one.get("name")): str(one.get("value")) for one in case.iter("property")}
        if noted:
            model_type = noted.pop("type")
            yield model_type, noted


def _size(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0


def _rows(values: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(values):
        yield f"| {name} | {' '.join(values[name].split())} |\n"


if __name__ == "__main__":
    main()
