"""Mutated config.json and generation_config.json, against transformers' own model."""

import json
import random
from pathlib import Path
from typing import Any

from tests.fuzz import material
from tests.fuzz.children import WronglyAcceptedError
from tests.fuzz.mutations import dumped, mutated
from tests.fuzz.outcomes import OTHER, SAME

BUILT = 100
"""One accepted config of so many is built and run."""


class Configs:
    name = "configs"

    def __init__(self, work: Path) -> None:
        import torch

        from tests.oracle import checkpoints  # noqa: F401

        torch.set_num_threads(1)
        self._work = work
        self._configs = {
            name: {
                file: json.loads((work / name / file).read_text())
                for file in ("config.json", "generation_config.json")
            }
            for name in material.FAMILIES
        }
        from transformers import AutoModelForCausalLM

        self._weights = {
            name: AutoModelForCausalLM.from_pretrained(
                work / name, dtype=torch.float32
            ).state_dict()
            for name in material.FAMILIES
        }
        for name in material.FAMILIES:  # modules that transformers imports by name
            self._reference(name, work / name)

    def mutate(self, rng: random.Random, directory: Path) -> str:
        self._family = rng.choice(material.FAMILIES)
        self._builds = rng.randrange(BUILT) == 0
        material.link_tree(self._work / self._family, directory)
        file = "config.json" if rng.random() < 0.85 else "generation_config.json"
        fields, told = mutated(self._configs[self._family][file], rng)
        text, more = dumped(fields, rng)
        material.replace(directory / file, text)
        return f"{self._family} {file} {told} {more}"

    def judge(self, directory: Path) -> tuple[str, str]:
        from snapexport.builder import BuildOptions
        from snapexport.builder.resolved import resolve

        options = BuildOptions.of(model=str(directory), out=directory / "out", **material.FLAGS)
        resolved = resolve(options)
        _make_end_whole(directory / "config.json")
        self._require_numbers(resolved.model.model_dump())
        model = self._reference(self._family, directory)
        config = model.config
        facts = resolved.model
        kv_heads = 1 if facts.latent else config.num_key_value_heads
        heads = config.num_attention_heads, kv_heads
        if heads != (facts.num_attention_heads, facts.num_key_value_heads):
            raise WronglyAcceptedError("other heads than transformers has")
        if self._builds:
            self._require_same_tokens(directory, model)
            return OTHER, "built, with transformers' tokens"
        return SAME, ""

    def _require_numbers(self, facts: dict[str, Any]) -> None:
        for name, value in facts.items():
            for number in value if isinstance(value, list) else [value]:
                if name in ("architecture", "attention_sinks"):
                    continue
                if type(number) is not int or not 0 <= number < 2**31:
                    raise WronglyAcceptedError(f"{name} is {number!r}")
        for name in ("vocab_size", "head_dim", "num_hidden_layers", "num_attention_heads"):
            if facts[name] < 1:
                raise WronglyAcceptedError(f"{name} is {facts[name]}")
        if any(token >= facts["vocab_size"] for token in facts["eos_token_id"]):
            raise WronglyAcceptedError("an end token outside of the vocabulary")

    def _reference(self, family: str, directory: Path) -> Any:
        """transformers' model with the checkpoint's weights, run once."""
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        try:
            config = AutoConfig.from_pretrained(directory)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            missing, _ = model.load_state_dict(self._weights[family], strict=False)
            tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
            if set(missing) - tied:
                raise ValueError(f"no {sorted(missing)[:2]}")
            if config.tie_word_embeddings:
                model.tie_weights()
            with torch.no_grad():
                logits = model(torch.tensor([material.PROMPTS[0]])).logits
        except Exception as error:
            raise WronglyAcceptedError(
                f"transformers: {type(error).__name__}: {str(error)[:150]}"
            ) from None
        if not torch.isfinite(logits).all():
            raise WronglyAcceptedError("transformers' logits are not finite")
        return model

    def _require_same_tokens(self, directory: Path, model: Any) -> None:
        import torch

        from snapexport.builder import build

        build(directory, directory / "out", L_max=64, policy="full", prefill_chunk=24, batch=1)
        found = material.tokens(directory / "out")[0]
        expected, ids = [], list(material.PROMPTS[0])
        with torch.no_grad():
            for _ in range(material.TOKENS):
                logits = model(torch.tensor([ids])).logits[0, -1]
                ids.append(int(logits.argmax()))
                expected.append(ids[-1])
                best = logits.topk(2).values
                if best[0] - best[1] < 1e-3:  # a tie that rounding decides
                    break
        if found[: len(expected)] != expected:
            raise WronglyAcceptedError(f"tokens {found}, transformers' are {expected}")


def _make_end_whole(config: Path) -> None:
    """Write an end token such as 2.0 as 2: so we read it, and transformers refuses it."""
    fields = json.loads(config.read_text("utf-8-sig"))
    end = fields.get("eos_token_id")
    if type(end) is float and end.is_integer():
        material.replace(config, json.dumps(fields | {"eos_token_id": int(end)}).encode())
