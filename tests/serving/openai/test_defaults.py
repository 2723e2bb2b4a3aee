"""Values of requests that name none: the server's, the checkpoint's, OpenAI's."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from snapexport.errors import UserError
from snapexport.serving.options import ServeOptions
from snapexport.serving.serve import Defaults
from tests.serving.openai.conftest import Served

CHAT: Any = [{"role": "user", "content": "a"}]
QWEN = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "eos_token_id": 1}


def defaults(build: Path, config: object = None, **options: Any) -> Defaults:
    if config is not None:
        (build / "generation_config.json").write_text(json.dumps(config))
    return Defaults.of(ServeOptions(build, **options))


@pytest.mark.parametrize(
    ("config", "options", "values"),
    [
        (None, {}, {}),
        ({"eos_token_id": 1}, {}, {}),
        (QWEN, {}, {"temperature": 0.7, "top_p": 0.8, "top_k": 20}),
        (QWEN, {"temperature": 0.0, "max_tokens": 9}, {"temperature": 0.0, "max_tokens": 9}),
        (QWEN, {"no_generation_config": True}, {}),
        (
            {"do_sample": False, "repetition_penalty": 1.1, "min_p": None},
            {},
            {"repetition_penalty": 1.1},
        ),
    ],
)
def test_servers_own_values_come_before_the_checkpoints(
    tmp_path: Path, config: object, options: dict[str, Any], values: dict[str, Any]
) -> None:
    """Of the checkpoint's all count, as in vLLM."""
    found = defaults(tmp_path, config, **options).values
    recommended = QWEN if config is QWEN and "no_generation_config" not in options else {}
    kept = {name: recommended[name] for name in ("temperature", "top_p", "top_k") if recommended}
    assert found == kept | values


def test_each_value_names_its_source(tmp_path: Path) -> None:
    text = str(defaults(tmp_path, QWEN, top_p=0.5))
    assert text == (
        "temperature 0.7 (generation_config.json), top_p 0.5 (--top-p), "
        "top_k 20 (generation_config.json)"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": 2.5}, "--temperature 2.5"),
        ({"temperature": float("nan")}, "--temperature nan"),
        ({"top_p": 0}, "--top-p 0"),
        ({"max_tokens": 0}, "--max-tokens 0 is below 1"),
    ],
)
def test_default_that_no_request_could_have_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        ServeOptions(Path("a.build"), **options)


def test_broken_value_of_the_checkpoint_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"generation_config\.json: top_k"):
        defaults(tmp_path, {"top_k": "many"})


def test_request_takes_the_defaults_but_for_what_it_names(
    served: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"temperature": 0.5, "top_k": 4, "repetition_penalty": 1.25, "max_tokens": 3}
    monkeypatch.setattr(served.model, "defaults", given)
    client.completions.create(model="model", prompt="a")
    client.chat.completions.create(model="model", messages=CHAT)
    client.chat.completions.create(
        model="model", messages=CHAT, max_tokens=2, temperature=1, extra_body={"top_k": 0}
    )
    one, two, three = [request.params for request in served.llm.requests]
    assert one and two and three
    for params in (one, two):
        assert {name: getattr(params, name) for name in given} == given
    assert (three.max_tokens, three.temperature, three.top_k) == (2, 1, 0)
    assert three.repetition_penalty == 1.25
