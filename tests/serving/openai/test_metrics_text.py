"""The metrics as Prometheus' text format 0.0.4 has them, parsed line by line."""

import re
from urllib.request import urlopen

import openai
import pytest

from tests.serving.openai.conftest import Served
from tests.serving.process import SECONDS

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABELS = r'\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"(?:,(?!\})|(?=\})))*\}'
SAMPLE = re.compile(rf"({NAME})({LABELS})? (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|[+-]Inf|NaN)")
ENDINGS = {"histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "counter": ("",)}


def parsed(text: str) -> dict[str, tuple[str, dict[str, float]]]:
    """Family -> its type and samples. Asserts that every line is where it may stand."""
    assert text.endswith("\n")
    families: dict[str, tuple[str, dict[str, float]]] = {}
    helped = name = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split(" ", 3)[2]
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == helped and name not in families and kind in ENDINGS
            families[name] = kind, {}
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            kind, samples = families[name]
            assert match[1] in [name + ending for ending in ENDINGS[kind]], line
            key = match[1] + (match[2] or "")
            assert key not in samples
            samples[key] = float(match[3])
    return families


def test_every_line_of_the_metrics_is_prometheus_text(
    served: Served, client: openai.OpenAI
) -> None:
    client.completions.create(model="model", prompt="abc", max_tokens=4)
    with urlopen(f"{served.url}/metrics", timeout=SECONDS) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = parsed(answer.read().decode())
    assert len(families) == 17 and all(samples for _, samples in families.values())
    for name, (kind, samples) in families.items():
        assert kind != "counter" or name.endswith("_total")
        if kind == "histogram":
            buckets = [value for key, value in samples.items() if "_bucket" in key]
            assert buckets == sorted(buckets)
            (count,) = [value for key, value in samples.items() if "_count" in key]
            assert buckets[-1] == count
    labels = '{model="model",version="1"}'
    kind, slots = families["snapexport_slots"]
    assert (kind, slots) == ("gauge", {f"snapexport_slots{labels}": 3})
    _, tokens = families["snapexport_generated_tokens_total"]
    assert tokens[f"snapexport_generated_tokens_total{labels}"] >= 4


@pytest.mark.parametrize("line", ['a{b="c} 1', 'a{b="c"d} 1', "a 1 x", "a{} one", "0a 1", "a  1"])
def test_a_line_that_is_not_a_sample_is_found(line: str) -> None:
    with pytest.raises(AssertionError):
        parsed(f"# HELP a b\n# TYPE a gauge\n{line}\n")
