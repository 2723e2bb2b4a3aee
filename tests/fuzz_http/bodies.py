"""Hostile requests, the same for the same seed: fields, bytes, headers and paths gone wrong."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.fuzz_http.raw_client import CHAT, COMPLETIONS, post

MODEL = "vault"
SAMPLING = {"max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "seed": 1, "n": 2, "stop": ["x"]}
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The old?"}]
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
]
SEEDS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": TALK, **SAMPLING}),
    (CHAT, {"messages": PARTS, "stream": True, "stream_options": {"include_usage": True}}),
    (CHAT, {"messages": TALK, "logprobs": True, "top_logprobs": 3, "max_completion_tokens": 3}),
    (CHAT, {"messages": TALK, "chat_template_kwargs": {"add": True}, "max_tokens": 2}),
    (COMPLETIONS, {"prompt": "The old", **SAMPLING}),
    (COMPLETIONS, {"prompt": [1, 2, 3], "echo": True, "max_tokens": 3}),
    (COMPLETIONS, {"prompt": [[1, 2], [3]], "logprobs": 2, "max_tokens": 3, "stream": True}),
    (COMPLETIONS, {"prompt": [1, 2, 3], "echo": True, "logprobs": 1, "max_tokens": 0}),
    (CHAT, {"messages": TALK, "add_generation_prompt": False, "continue_final_message": True}),
    ("/tokenize", {"messages": TALK, "return_token_strs": True}),
    ("/tokenize", {"prompt": "The old", "add_special_tokens": False}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    (COMPLETIONS, {"prompt": ["a", "b"], "logit_bias": {}, "user": "me", "max_tokens": 3}),
]
FIELDS = (
    "model messages prompt stream stream_options n stop max_tokens temperature top_p seed top_k "
    "ignore_eos logprobs top_logprobs chat_template_kwargs echo logit_bias tools metadata user "
    "response_format max_completion_tokens frequency_penalty functions tokens "
    "continue_final_message reasoning_effort stop_token_ids __proto__ [/b] \x1b[31m"
).split()


def nested(depth: int, opening: str = "[", closing: str = "]") -> "Raw":
    return Raw(opening * depth + "1" + closing * depth)


@dataclass(frozen=True)
class Raw:
    """Text that stands in a body as it is."""

    text: str


def values(chance: random.Random) -> Any:
    """A value that no client should send, or none that is expected there."""
    many = chance.choice([3, 70, 5000, 60_000])
    return chance.choice(
        [
            None, True, False, -1, 0, 1, 1.5, 1e308, -1e308, 1 << 31, 1 << 63, 1 << 64, 1 << 200,
            "", "a", "a" * many, "\x00", "\ud800", "\u202e[bold]x[/bold]", "{{ 7 * 7 }}",
            "\U0001f600" * many, [], {}, [None], [[]], [{}], [[[]]], ["a", 1], [1, "a"], [-1],
            [1 << 40], [True], [1] * many, ["a"] * many, [{}] * many, [[1]] * many,
            [{"role": "user"}] * many, [{"role": "x" * many, "content": many}],
            [{"role": "user", "content": ["a"] * many}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}] * many}],
            "</s>" * 9, [{"role": "user", "content": "a", "x" * many: 1}],
            {"a": {"b": {"c": [1, {}]}}},
            {str(i): i for i in range(min(many, 5000))}, {"x" * many: 1},
            Raw("NaN"), Raw("Infinity"), Raw("1" * many), Raw("1e99999"), Raw("-0"), Raw("01"),
            Raw("'a'"), Raw('"\\ud800"'), Raw('"\\x41"'), nested(50), nested(many),
            nested(many, '{"a":', "}"), Raw(""), Raw("[" * many), Raw('"' + "\\\\" * many + '"'),
        ]
    )  # fmt: skip


def written(body: dict[str, Any], chance: random.Random) -> bytes:
    """A body as JSON, with raw parts where they stand, and sometimes a key twice."""
    members = [f"{json.dumps(name)}: {_text(value)}" for name, value in body.items()]
    if chance.random() < 0.1:
        members.append(chance.choice(members))
    return ("{" + ", ".join(members) + "}").encode(errors="surrogatepass")


def _text(value: Any) -> str:
    return value.text if isinstance(value, Raw) else json.dumps(value)


def wrong_field(body: dict[str, Any], chance: random.Random) -> bytes:
    """One to three fields get another value, go, or come."""
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        name = chance.choice([*body, *FIELDS])
        if chance.random() < 0.15:
            body.pop(name, None)
        else:
            body[name] = values(chance)
    return written(body, chance)


def wrong_bytes(body: dict[str, Any], chance: random.Random) -> bytes:
    """Bytes flipped, cut, doubled or put in."""
    raw = bytearray(written(body, chance))
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(raw) + 1)
        what = chance.randrange(4)
        if what == 0 and at < len(raw):
            raw[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            del raw[at : at + chance.randint(1, 20)]
        elif what == 2:
            raw[at:at] = chance.randbytes(chance.randint(1, 6))
        else:
            raw[at:at] = raw[at : at + chance.randint(1, 40)]
    return bytes(raw)


def no_object(_: dict[str, Any], chance: random.Random) -> bytes:
    """No JSON object at all."""
    size = chance.choice([0, 1, 10, 1000, 200_000])
    return chance.choice(
        [
            b"", b"null", b"[]", b'"a"', b"1", b"\xff\xfe", b"[" * size, b'{"a":' * size,
            b"{" * size, b'"' * size, b"\\" * size, b"1" * size, b"," * size, b'"\\"' * size,
            chance.randbytes(size), b"\x00" * size, b"\xef\xbb\xbf{}",
            b"[" + b"{}," * size + b"{}]",
        ]
    )  # fmt: skip


Mutation = Callable[[dict[str, Any], random.Random], bytes]
MUTATIONS: dict[str, tuple[Mutation, int]] = {
    "field": (wrong_field, 10),
    "bytes": (wrong_bytes, 4),
    "no object": (no_object, 2),
}


UNFRAMED = (1, 2, 10, 12)
"""The heads below that promise another body than the one that comes."""


def wrong_http(which: int, path: str, body: bytes, chance: random.Random) -> bytes:
    """A request whose head is wrong: its headers, its framing or its first line."""
    size = str(len(body))
    long = "a" * chance.choice([100, 10_000, 100_000])
    odd: dict[int, bytes] = {
        0: post(
            path, body, {"Content-Type": chance.choice(["text/plain", "", "x" * 200, "a/b;c"])}
        ),
        1: post(path, body, {"Content-Length": chance.choice(["-1", "abc", "", "9" * 30])}),
        2: post(path, body, {"Transfer-Encoding": "chunked"}),
        3: post(path, body, {"X-Long": long}),
        4: post(path, body, {"Expect": "100-continue"}),
        5: post(path, body, {"Host": chance.choice(["", "evil.example", "[::1", long])}),
        6: post("/" + long, body),
        7: post(chance.choice(["/v1/models/%00", "/v1//", "//", "*", "/\x7f"]), body),
        8: post(path, body).replace(b"POST", chance.choice([b"GET", b"PUT", b"P\x00ST", b"BREW"])),
        9: post(path, body).replace(b"HTTP/1.1", chance.choice([b"HTTP/9.9", b"", b"HTTP/1.0"])),
        10: chance.randbytes(200) + b"\r\n\r\n",
        11: post(path, body, {"Content-Encoding": "gzip"}),
        12: f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        f"Content-Type: application/json\r\n\r\nzz\r\n{size}".encode(),
        13: post(path, body, {"Upgrade": "websocket", "Connection": "upgrade"}),
    }
    return odd[which]


@dataclass(frozen=True)
class Case:
    """One request. name: which mutation of which seed body. ends: whether its body is whole.

    After one that is not whole the client stops writing, and the server may close unasked.
    """

    name: str
    raw: bytes
    ends: bool = True


def cases(seed: int, count: int) -> Iterator[Case]:
    """As many hostile requests, by their seed."""
    names = list(MUTATIONS)
    weights = [weight for _, weight in MUTATIONS.values()]
    for index in range(count):
        chance = random.Random(f"{seed}:{index}")
        path, body = chance.choice(SEEDS)
        (kind,) = chance.choices(names, weights)
        raw = MUTATIONS[kind][0]({"model": MODEL, **body}, chance)
        if chance.random() < 0.12:
            which = chance.randrange(14)
            head = wrong_http(which, path, raw, chance)
            yield Case(f"{seed}:{index} head {which}, {kind}", head, which not in UNFRAMED)
        else:
            yield Case(f"{seed}:{index} {kind}", post(path, raw))
