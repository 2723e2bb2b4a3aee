"""Compares greedy answers to short questions: transformers in fp32, llama.cpp and builds.

    llama-server -m MODEL.gguf --port 8081 &
    python -m tools.studies.quality.short_answers MODEL.gguf NAME=BUILD ... \
        --llama-cpp http://127.0.0.1:8081 --work FOLDER --out RESULT.json

All get the same tokens, by the checkpoint's chat template.
"""

import argparse
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from snapexport import LLM, SamplingParams
from tools.studies.speed.from_gguf import checkpoint_of

QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Italy?",
    "Who wrote Romeo and Juliet?",
    "How many days are in a week?",
    "What colour is the sky on a clear day?",
    "What is 2 + 2?",
    "What is the largest planet of the solar system?",
    "What is the chemical symbol of gold?",
    "Name the author of Don Quixote.",
    "What language is spoken in Brazil?",
    "How many legs does a spider have?",
    "What is the opposite of hot?",
    "Which ocean is the largest?",
    "What do bees make?",
    "What is the boiling point of water in degrees Celsius?",
    "Who painted the Mona Lisa?",
    "What is the square root of 81?",
    "Translate 'good morning' to Spanish.",
    "Write a Python expression that adds a and b.",
    "What is the first month of the year?",
)
TOKENS = 16
Ids = list[int]
Answering = Callable[[list[Ids]], list[Ids]]


def by_build(build: str) -> Answering:
    """snapexport, one request after another."""

    def answers(prompts: list[Ids]) -> list[Ids]:
        llm, params = LLM(build, threads=2), SamplingParams(max_tokens=TOKENS, temperature=0)
        return [list(llm.generate([prompt], params)[0].token_ids) for prompt in prompts]

    return answers


def by_llama_cpp(url: str) -> Answering:
    """llama.cpp's server."""

    def answer(prompt: Ids) -> Ids:
        asked = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "return_tokens": True}
        asked |= {"cache_prompt": False, "repeat_penalty": 1.0}
        body = json.dumps(asked).encode()
        request = urllib.request.Request(f"{url}/completion", body, {"Content-Type": "text/json"})
        with urllib.request.urlopen(request) as reply:
            return list(json.load(reply)["tokens"])

    return lambda prompts: [answer(prompt) for prompt in prompts]


def by_transformers(checkpoint: Path) -> Answering:
    """In fp32."""

    @torch.no_grad()
    def answers(prompts: list[Ids]) -> list[Ids]:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        plain = {"do_sample": False, "repetition_penalty": 1.0, "max_new_tokens": TOKENS}
        return [
            model.generate(torch.tensor([prompt]), **plain)[0, len(prompt) :].tolist()
            for prompt in prompts
        ]

    return answers


def agreement(found: list[Ids], exact: list[Ids], ends: set[int]) -> dict[str, int]:
    """Of how many questions the first token and the whole answer are the exact ones."""
    both = zip(found, exact, strict=True)
    pairs = [[[i for i in one if i not in ends] for one in two] for two in both]
    return {
        "first tokens": sum(one[:1] == other[:1] for one, other in pairs),
        "answers": sum(one == other for one, other in pairs),
    }


def main() -> None:
    """Print a line for each system, and write the answers with them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("builds", nargs="+", metavar="NAME=BUILD")
    parser.add_argument("--llama-cpp", metavar="URL")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    checkpoint = checkpoint_of(given.file, given.work)
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": one}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for one in QUESTIONS
    ]
    exact = by_transformers(checkpoint)(prompts)
    systems = {name: by_build(build) for name, _, build in (b.partition("=") for b in given.builds)}
    if given.llama_cpp:
        systems["llama.cpp"] = by_llama_cpp(given.llama_cpp)
    found = {name: answering(prompts) for name, answering in systems.items()}
    ends = set(tokenizer.all_special_ids)
    rows = {name: agreement(one, exact, ends) for name, one in found.items()}
    for name, row in rows.items():
        print(json.dumps({"system": name} | row))
    texts = {
        name: tokenizer.batch_decode(one, skip_special_tokens=True)
        for name, one in ({"transformers": exact} | found).items()
    }
    answers = [
        {"question": one} | {name: each[at] for name, each in texts.items()}
        for at, one in enumerate(QUESTIONS)
    ]
    report = {"model": given.file.name, "questions": len(QUESTIONS), "tokens": TOKENS}
    report |= {"agree with transformers": rows, "answers": answers}
    given.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
