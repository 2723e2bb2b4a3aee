"""Drives onnxruntime-genai for tests, in an environment that has it: JSON lines in, JSON lines out.

Each line is a list: a command's name, and its arguments. The answer is {"ok": value} or
{"error": text}. Imports nothing of ours.
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime_genai as genai


class Driver:
    """One model, and generators by number."""

    def __init__(self, folder: str) -> None:
        self._model = genai.Model(folder)
        self._tokenizer: Any = None
        self._generators: dict[int, Any] = {}

    def start(self, name: int, search: dict[str, Any]) -> None:
        """A generator. search: options that differ from the folder's."""
        params = genai.GeneratorParams(self._model)
        params.set_search_options(**search)
        self._generators[name] = genai.Generator(self._model, params)

    def draft(self, name: int, search: dict[str, Any], speculation: dict[str, Any]) -> None:
        """A generator that drafts tokens."""
        params = genai.GeneratorParams(self._model)
        params.set_search_options(**search)
        params.set_speculative_options(**speculation)
        self._generators[name] = genai.Generator(self._model, params)

    def append(self, name: int, tokens: list[int]) -> None:
        self._generators[name].append_tokens(np.array([tokens], np.int32))

    def append_rows(self, name: int, rows: list[list[int]]) -> None:
        self._generators[name].append_tokens(np.array(rows, np.int32))

    def generate(self, name: int, count: int) -> list[int]:
        """Tokens until an end or `count`."""
        generator = self._generators[name]
        before = generator.token_count()
        for _ in range(count):
            if generator.is_done():
                break
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)[before:]]

    def logits(self, name: int) -> list[float]:
        found = self._generators[name].get_logits()
        return [float(value) for value in np.array(found).reshape(-1)]

    def rewind(self, name: int, length: int) -> None:
        self._generators[name].rewind_to(length)

    def count(self, name: int) -> int:
        return int(self._generators[name].token_count())

    def encode(self, text: str, with_start: bool) -> list[int]:
        if self._tokenizer is None:
            self._tokenizer = genai.Tokenizer(self._model)
        self._tokenizer.update_options(add_special_tokens=str(with_start).lower())
        return [int(token) for token in self._tokenizer.encode(text)]

    def ends(self) -> list[int]:
        self._tokenizer = self._tokenizer or genai.Tokenizer(self._model)
        return [int(token) for token in self._tokenizer.eos_token_ids]

    def memory(self) -> int:
        """Resident bytes of this process."""
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 4096


def main() -> None:
    """Answer until standard input ends."""
    driver: Driver | None = None
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            if command == "open":
                driver, answer = Driver(*arguments), None
            else:
                answer = getattr(driver, command)(*arguments)
            print(json.dumps({"ok": answer}), flush=True)
        except Exception as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
