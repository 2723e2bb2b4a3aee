"""Mutated tokenizers and chat templates."""

import json
import random
from pathlib import Path
from typing import Any

from tests.fuzz import material
from tests.fuzz.mutations import bytes_mutated, dumped, mutated
from tests.fuzz.outcomes import OTHER, SAME

TEXT = "or there stop, é漢 a b\n  aab"
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what is it?"},
]


class Tokenizers:
    name = "tokenizers"

    def __init__(self, work: Path) -> None:
        import snapexport.runtime.requests.prompts  # noqa: F401

        self._sources = [work / f"{name}.json" for name in ("byte_level", "byte_fallback", "words")]

    def mutate(self, rng: random.Random, directory: Path) -> str:
        source = rng.choice(self._sources)
        fields, told = mutated(json.loads(source.read_text()), rng)
        raw, more = dumped(fields, rng)
        if rng.random() < 0.15:
            raw, more = bytes_mutated(source.read_bytes(), rng)
            told = ""
        (directory / "tokenizer.json").write_bytes(raw)
        self._expected = _spoken(source.parent / source.name)
        return f"{source.stem} {told} {more}"

    def judge(self, directory: Path) -> tuple[str, str]:
        spoken = _spoken(directory / "tokenizer.json")
        return (SAME, "") if spoken == self._expected else (OTHER, "another tokenizer")


def _spoken(file: Path) -> Any:
    """What the runtime does with a tokenizer: encode a text, decode it token by token."""
    from tokenizers import Tokenizer

    from snapexport.runtime.requests.prompts import load_tokenizer
    from snapexport.runtime.requests.text import TextStream

    if file.name == "tokenizer.json":
        tokenizer = load_tokenizer(file.parent)
        assert tokenizer is not None
    else:
        tokenizer = Tokenizer.from_file(str(file))
    from snapexport.runtime.requests import prompts

    ids = prompts.encode(TEXT, tokenizer)
    stream = TextStream(tokenizer, ["stop it"])
    text = "".join([stream.push(token) for token in [*ids, 1, 255]]) + stream.finish()
    return ids, text


class Templates:
    name = "templates"

    def __init__(self, work: Path) -> None:
        import snapexport.runtime.chat.chat_template  # noqa: F401

        self._config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}

    def mutate(self, rng: random.Random, directory: Path) -> str:
        raw = material.TEMPLATE.encode()
        way = rng.randrange(6)
        if way < 2:
            raw, told = _spliced(material.TEMPLATE, rng)
        elif way == 2:
            raw, told = bytes_mutated(raw, rng)
        elif way == 3:
            raw, told = rng.choice(HOSTILE).encode("utf-8", "surrogatepass"), "hostile"
        else:
            told = ""
        config = self._config
        if way >= 4:
            config = {**config, "chat_template": material.TEMPLATE}
            fields, told = mutated(config, rng)
            text, more = dumped(fields, rng)
            (directory / "tokenizer_config.json").write_bytes(text)
            return f"tokenizer_config {told} {more}"
        (directory / "chat_template.jinja").write_bytes(raw)
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        return f"template {told}: {raw[:300]!r}"

    def judge(self, directory: Path) -> tuple[str, str]:
        """As the server renders it: in a process of its own."""
        from snapexport.runtime.chat import chat_template, template_files
        from snapexport.runtime.chat.chat_template import TemplateProcesses

        config = template_files.read_config(directory)
        template = TemplateProcesses(chat_template.load(directory, config))
        sorted(template.options)
        text = template.render(MESSAGES, add_generation_prompt=True)
        expected = "<s><<be brief>>\n[user] what is it?</s>\n[assistant]"
        return (SAME, "") if text == expected else (OTHER, "another text")


def _spliced(template: str, rng: random.Random) -> tuple[bytes, str]:
    """Parts of the template in another order."""
    parts = [part + "%}" for part in template.split("%}")]
    way = rng.randrange(3)
    if way == 0:
        del parts[rng.randrange(len(parts))]
    elif way == 1:
        rng.shuffle(parts)
    else:
        parts.insert(rng.randrange(len(parts)), rng.choice(HOSTILE))
    return "".join(parts).encode("utf-8", "surrogatepass"), "spliced"


HOSTILE = (
    "{{ messages.__class__.__mro__ }}", "{{ ''.join.__globals__ }}", "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}", "{{ [0] * 10 ** 12 }}", "{{ 'a' * 10 ** 11 }}", "{{ 9 ** 9 ** 9 }}",
    "{% for i in range(10 ** 12) %}x{% endfor %}", "{{ '%099999999999d' % 1 }}",
    "{{ messages | tojson(indent=10 ** 10) }}", "{{ 'x'.center(10 ** 12) }}",
    "{{ range(99999) | list | sort | join(',') | length }}", "{{ strftime_now('%') }}",
    "{{ strftime_now('\ud800') }}", "{{ strftime_now(1) }}",
    "{% set x = namespace(a=1) %}{{ x.a }}",
    "{{ raise_exception(messages) }}", "{{ raise_exception() }}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "{% break %}", "{{ 1 / 0 }}", "{{ undefined.a.b }}", "{{ messages[10 ** 30] }}", "{{ (" * 3000,
    "{% if a %}" * 2000,
    "{{ messages | map(attribute='role') | list | tojson }}", "{{ '\\ud800' }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}", "{{ lipsum(9999) }}",
    "{{ messages | map(attribute='content') | list | join('x' * 9999) }}",
    "{{ '{0.__class__}'.format(messages) }}", "{% extends messages %}", "{% raw %}", "{#",
    "{{ self }}{{ loop }}{{ namespace }}", "{% if " + "not " * 3000 + "1 %}{% endif %}",
    "{{ " + "-" * 5000 + "1 }}", "\x00\ud800", "{{ messages | sort | batch(0) | list }}",
    "{{ messages[0].content | replace('', 'a' * 99999) | replace('', 'a' * 99999) }}",
)  # fmt: skip
"""Escapes, loops without an end, and texts that grow."""
