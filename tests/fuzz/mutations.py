"""Mutates JSON values and bytes. Everything follows from the given generator."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

Path_ = tuple[Any, ...]

NUMBERS: list[Any] = [
    0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**30,
    -(2**31), -(2**63), 0.0, 0.5, -0.5, 1.0, 1e-300, 1e308, float("inf"), float("-inf"),
    float("nan"),
]  # fmt: skip
OTHERS: list[Any] = [
    None, True, False, "", "x", "1", "\0", "a" * 5000, "[/b]", "[bold]x", "$(id)", "{{x}}",
    "a\nRUN id",
    "é\u202e", "\ud800", "../../etc/passwd", "/dev/zero", "/etc/passwd", ".", "..", "weights",
    "weights/../../x", "./manifest.json", [], {}, [[]], [1], ["x"], {"x": 1}, [0] * 3000,
]  # fmt: skip


def paths(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """The place of each value within a JSON value, the whole one's excepted."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield (*at, key)
        yield from paths(inner, (*at, key))


def get(value: Any, path: Path_) -> Any:
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: Path_, new: Any) -> None:
    get(value, path[:-1])[path[-1]] = new


def mutated(value: Any, rng: random.Random, most: int = 2) -> tuple[Any, str]:
    """A copy with one mutation or a few, and what was done."""
    value, told = copy.deepcopy(value), []
    for _ in range(rng.choice([1] * 4 + list(range(1, most + 1)))):
        told.append(_mutate(value, rng))
    return value, "; ".join(told)


def _mutate(value: Any, rng: random.Random) -> str:
    places = list(paths(value))
    if not places:
        return "nothing to mutate"
    # Long lists would take nearly all the choices: first the depth, then the place.
    depth = rng.choice(sorted({len(place) for place in places}))
    path = rng.choice([place for place in places if len(place) == depth])
    old, way = get(value, path), rng.choice(WAYS)
    return f"{'.'.join(map(str, path))}: {way(value, path, old, rng)}"


def _hostile(value: Any, path: Path_, old: Any, rng: random.Random) -> str:
    new = rng.choice(OTHERS if rng.random() < 0.5 else NUMBERS)
    put(value, path, copy.deepcopy(new))
    return f"{_short(old)} -> {_short(new)}"


def _near(value: Any, path: Path_, old: Any, rng: random.Random) -> str:
    if isinstance(old, bool) or old is None:
        new: Any = not old
    elif isinstance(old, int | float):
        new = rng.choice([old + 1, old - 1, old * 2, old // 2, -old, float(old), str(old), [old]])
    elif isinstance(old, str):
        new = rng.choice(
            [old + "x", old[:-1], old.upper(), old[::-1], f"./{old}", f"{old}/", f"{old}\0"]
        )
    elif isinstance(old, list):
        new = rng.choice([old[:-1], old + old[:1], old[::-1], old * 2, {"0": old}])
    else:
        new = rng.choice([list(old.values()), {**old, "unknown": 1}, {}])
    put(value, path, new)
    return f"{_short(old)} -> {_short(new)}"


def _drop(value: Any, path: Path_, old: Any, rng: random.Random) -> str:
    del get(value, path[:-1])[path[-1]]
    return "dropped"


def _sibling(value: Any, path: Path_, old: Any, rng: random.Random) -> str:
    """Another value of the same type takes the place."""
    same = [get(value, place) for place in paths(value) if type(get(value, place)) is type(old)]
    new = copy.deepcopy(rng.choice(same))
    put(value, path, new)
    return f"{_short(old)} -> {_short(new)} of elsewhere"


WAYS = (_hostile, _hostile, _near, _near, _drop, _sibling)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."


def dumped(value: Any, rng: random.Random) -> tuple[bytes, str]:
    """JSON text, now and then mutated as a text."""
    text = json.dumps(value).encode("utf-8", "surrogatepass")
    return bytes_mutated(text, rng) if rng.random() < 0.08 else (text, "")


def bytes_mutated(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Bytes with one mutation that knows no format."""
    at = rng.randrange(len(data) + 1)
    length = min(len(data) - at, rng.choice([1, 2, 8, 64]))
    way = rng.randrange(9)
    if way == 0:
        return data[:at], f"cut at byte {at} of {len(data)}"
    if way == 1:
        new = bytes(rng.randrange(256) for _ in range(max(1, length)))
        return data[:at] + new + data[at + length :], f"{length} random bytes at {at}"
    if way == 2 and data:
        at = min(at, len(data) - 1)
        flipped = bytes([data[at] ^ (1 << rng.randrange(8))])
        return data[:at] + flipped + data[at + 1 :], f"a bit of byte {at}"
    if way == 3:
        return data[:at] + data[at + length :], f"{length} bytes dropped at {at}"
    if way == 4:
        return data[:at] + data[at : at + length] * 3 + data[
            at + length :
        ], f"{length} bytes thrice at {at}"
    if way == 5:
        deep = rng.choice([b"[", b'{"a":']) * 100_000
        return data[:at] + deep + data[at:], f"100,000 brackets at {at}"
    if way == 6:
        new = rng.choice([b"\xff\xfe", b"\xef\xbb\xbf", b"\0", b"NaN", b"1e999", b"9" * 5000])
        return data[:at] + new + data[at:], f"{new[:8]!r} at {at}"
    if way == 7:
        return b"", "empty"
    doubled = data.replace(b'": ', b'": 1, "dup": 2, "dup": ', 1)
    return doubled, "a key twice"
