"""Asks for facts of a text after compression and in the prompt, and scores what follows.

usage: python -m tools.studies.quality.two_facts BUILD ... --documents DOMAIN=FOLDER ... --out FILE

Each text, of --tokens, holds a number of seven digits and an id of 13
characters, or a Python function in place of the id in every third text. The answer is forced; it is
found if each of its tokens is the likeliest. `BUILD@` stands for a build's full cache (--baseline).
Builds need --batch 1 and the same tokenizer.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from snapexport.contract.build_directory import Build
from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor

FOLLOWING, FACTS = 48, 160
CITIES = "Lisbon Oslo Nairobi Quito Hanoi Cairo Dublin Havana Jakarta Riga".split()
TEXTS = {".md", ".txt", ".py", ".csv"}
Ids = list[int]
Found = dict[str, float]


class Fact(NamedTuple):
    """A fact as the text has it, a question, the beginning of the answer, and its rest."""

    kind: str
    stated: str
    question: str
    answer: str


class Sample(NamedTuple):
    """questions: the tokens of a question and of its answer, by kind. following: the next ones."""

    domain: str
    prompt: Ids
    questions: dict[str, tuple[Ids, Ids]]
    following: Ids


def facts(index: int, draw: Random) -> tuple[Fact, Fact]:
    """A number, and an id or a function."""
    city, number = CITIES[index % 10], str(draw.randint(10**6, 10**7 - 1))
    about = f"The access number for {city} is"
    asked = f"\nQuestion: What is the access number for {city}?\nAnswer: {about}"
    first = Fact("number", f"\n{about} {number}.\n", asked, f" {number}")
    if index % 3 == 2:
        name, terms = f"scale_{city.lower()}", [draw.randint(11, 9999) for _ in range(3)]
        body = f" (value * {terms[0]} + {terms[1]}) % {terms[2]}"
        head = f"def {name}(value):\n    return"
        asked = f"\nQuestion: What is the code of {name}?\nAnswer:\n{head}"
        return first, Fact("function", f"\n{head}{body}\n", asked, body)
    serial = f"{draw.getrandbits(32):08x}-{draw.getrandbits(16):04x}"
    about = "The serial id of the blue printer is"
    asked = f"\nQuestion: What is the serial id of the blue printer?\nAnswer: {about}"
    return first, Fact("id", f"\n{about} {serial}.\n", asked, f" {serial}")


def samples(domains: dict[str, list[str]], tokenizer: Tokenizer, tokens: int) -> Iterator[Sample]:
    """One of each text, with two facts at random places of both halves."""
    draw = Random(0)

    def ids(text: str) -> Ids:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    index = 0
    for texts in zip(*domains.values(), strict=True):
        for domain, text in zip(domains, texts, strict=True):
            whole, end = ids(text[: 8 * tokens]), tokens - FACTS
            if len(whole) < end + FOLLOWING:
                raise SystemExit(f"a text of {domain} has only {len(whole)} tokens")
            first, second = facts(index, draw)
            index += 1
            places = [int(end * draw.uniform(0.1, 0.45)), int(end * draw.uniform(0.5, 0.85))]
            body = whole[: places[0]] + ids(first.stated) + whole[places[0] : places[1]]
            prompt = body + ids(second.stated) + whole[places[1] : end]
            questions = {one.kind: (ids(one.question), ids(one.answer)) for one in (first, second)}
            yield Sample(domain, prompt, questions, whole[end : end + FOLLOWING])


def forced(executor: Executor, length: int, tokens: Ids) -> list[NDArray[np.float32]]:
    """Logits [V] after each token that follows a prompt of `length`."""
    prompt_length, rows = np.array([length]), []
    for place, token in enumerate(tokens):
        position = np.array([length + place])
        rows.append(executor.decode(np.array([token]), position, prompt_length)[0].logits.copy())
    return rows


def measure(executor: Executor, sample: Sample, *, early: bool = True) -> Found:
    """Whether each fact is found, late and early, and the nats of a token of what follows.

    early: else nothing is asked in the prompt, and the text is prefilled once and not three times.
    """
    found: Found = {}
    length = len(sample.prompt)
    rows = [executor.prefill_prompt(0, sample.prompt).logits.copy()]
    rows += forced(executor, length, sample.following[:-1])
    logits = np.stack(rows).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    nats = -logits[np.arange(FOLLOWING), sample.following].mean()
    for kind, (question, answer) in sample.questions.items():
        executor.compress(0, length)
        late = forced(executor, length, [*question, *answer[:-1]])[-len(answer) :]
        found[f"late {kind}"] = float([int(one.argmax()) for one in late] == answer)
    for kind, (question, answer) in sample.questions.items() if early else ():
        asked = sample.prompt + question
        rows = [executor.prefill_prompt(0, asked).logits.copy()]
        rows += forced(executor, len(asked), answer[:-1])
        found[f"early {kind}"] = float([int(one.argmax()) for one in rows] == answer)
    return found | {f"nats {sample.domain}": float(nats)}


def summary(each: list[Found]) -> dict[str, list[float]]:
    """The mean, its standard error and the count of each figure."""
    kinds = sorted({kind for one in each for kind in one})
    found = {}
    for kind in kinds:
        values = [one[kind] for one in each if kind in one]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        found[kind] = [round(statistics.fmean(values), 3), round(error, 3), len(values)]
    return found


def texts_of(folder: Path, count: int, tokens: int) -> list[str]:
    """The longest `count` texts of a folder that have a token in four characters."""
    files = sorted(one for one in folder.iterdir() if one.suffix in TEXTS)
    texts = [file.read_text(errors="replace") for file in files]
    enough = [text for text in texts if len(text) > 4.5 * tokens][:count]
    if len(enough) < count:
        raise SystemExit(f"{folder} has {len(enough)} texts that are long enough, not {count}")
    return enough


def main() -> None:
    """Print a line for each build."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("builds", nargs="+", metavar="BUILD")
    parser.add_argument("--documents", nargs="+", required=True, metavar="DOMAIN=FOLDER")
    parser.add_argument("--samples", type=int, default=8, help="texts of each domain")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--late", action="store_true", help="ask nothing in the prompt")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--precision", choices=["f32", "bf16"], help="of OpenVINO")
    parser.add_argument("--out", type=Path, help="results as JSON; builds in it are not run again")
    given = parser.parse_args()
    folders = dict(one.split("=", 1) for one in given.documents)
    domains = {k: texts_of(Path(v), given.samples, given.tokens) for k, v in folders.items()}
    results = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    for name in given.builds:
        if Path(name).name in results:
            continue
        build = Build.open(Path(name.rstrip("@")))
        tokenizer = Tokenizer.from_file(str(build.directory / TOKENIZER))
        running = {"threads": given.threads or None, "precision": given.precision}
        running |= {"backend": "openvino"} if given.precision else {}
        executor = open_executor(build, baseline=name.endswith("@"), **running)
        texts = samples(domains, tokenizer, given.tokens)
        each = [measure(executor, one, early=not given.late) for one in texts]
        executor.close()
        results[Path(name).name] = {"tokens": given.tokens} | summary(each)
        print(name, results[Path(name).name], flush=True)
        if given.out:
            given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
