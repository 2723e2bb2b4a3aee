"""Asks for two facts of a text after compression and in the prompt, and scores what follows.

usage: python -m tools.studies.quality.two_facts BUILD ... --documents FOLDER [--out FILE]

Each text of 1,500 tokens holds a number of seven digits and an id of 13 characters. The answer is
forced; it is found if each of its tokens is the likeliest. `BUILD@` stands for a build's full cache
(--baseline). Builds need --batch 1 and the same tokenizer.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from snapexport.contract.build_directory import Build
from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor

TOKENS, FOLLOWING = 1500, 48
CITIES = "Lisbon Oslo Nairobi Quito Hanoi Cairo Dublin Havana Jakarta Riga".split()
Ids = list[int]


class Sample(NamedTuple):
    """questions: the tokens of a question and of its answer, by kind. following: the next ones."""

    prompt: Ids
    questions: dict[str, tuple[Ids, Ids]]
    following: Ids


def samples(texts: list[str], tokenizer: Tokenizer, count: int) -> Iterator[Sample]:
    """Texts with two facts in them, at random places of both halves."""
    draw = Random(0)

    def ids(text: str) -> Ids:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    for index in range(count):
        whole = ids(texts[index % len(texts)])
        body, following = whole[: TOKENS - 120], whole[TOKENS - 120 : TOKENS - 120 + FOLLOWING]
        city, number = CITIES[index % 10], str(draw.randint(10**6, 10**7 - 1))
        serial = f"{draw.getrandbits(32):08x}-{draw.getrandbits(16):04x}"
        first = int(len(body) * draw.uniform(0.1, 0.45))
        second = int(len(body) * draw.uniform(0.5, 0.85))
        of_number = ids(f"\nThe access number for {city} is {number}.\n")
        of_id = ids(f"\nThe serial id of the blue printer is {serial}.\n")
        prompt = body[:first] + of_number + body[first:second] + of_id + body[second:]
        asks = f"What is the access number for {city}?", f"The access number for {city} is"
        asks_id = (
            "What is the serial id of the blue printer?",
            "The serial id of the blue printer is",
        )
        questions = {
            "number": (ids("\nQuestion: " + "\nAnswer: ".join(asks)), ids(f" {number}")),
            "id": (ids("\nQuestion: " + "\nAnswer: ".join(asks_id)), ids(f" {serial}")),
        }
        yield Sample(prompt, questions, following)


def forced(executor: Executor, prompt: Ids, tokens: Ids) -> NDArray[np.float32]:
    """Logits [1+N,V] after the prompt, and after each of N tokens."""
    rows = [executor.prefill_prompt(0, prompt).logits.copy()]
    length = np.array([len(prompt)])
    for place, token in enumerate(tokens):
        position = np.array([len(prompt) + place])
        rows.append(executor.decode(np.array([token]), position, length)[0].logits.copy())
    return np.stack(rows)


def measure(executor: Executor, sample: Sample) -> dict[str, float]:
    """Whether each fact is found, late and early, and the nats of a token of what follows."""
    found: dict[str, float] = {}
    for kind, (question, answer) in sample.questions.items():
        late = forced(executor, sample.prompt, [*question, *answer[:-1]])[-len(answer) :]
        early = forced(executor, sample.prompt + question, answer[:-1])
        for name, logits in (("late", late), ("early", early)):
            found[f"{name} {kind}"] = float(logits.argmax(-1).tolist() == answer)
    logits = forced(executor, sample.prompt, sample.following[:-1]).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    rows = np.arange(len(sample.following))
    return found | {"nats": -float(logits[rows, sample.following].mean())}


def main() -> None:
    """Print a line for each build."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("builds", nargs="+", metavar="BUILD")
    parser.add_argument("--documents", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--out", type=Path, help="results as JSON")
    given = parser.parse_args()
    files = sorted(one for one in given.documents.rglob("*.md") if one.stat().st_size > 7000)
    texts, results = [file.read_text() for file in files], dict[str, Any]()
    for name in given.builds:
        build = Build.open(Path(name.rstrip("@")))
        tokenizer = Tokenizer.from_file(str(build.directory / TOKENIZER))
        executor = open_executor(build, baseline=name.endswith("@"))
        each = [measure(executor, one) for one in samples(texts, tokenizer, given.samples)]
        executor.close()
        mean = {kind: round(statistics.fmean(one[kind] for one in each), 3) for kind in each[0]}
        results[name] = {"mean": mean, "samples": each}
        print(name, mean, flush=True)
        if given.out:
            given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
