"""Words that the style guide replaces: none in what users read, and ever fewer elsewhere."""

from collections import Counter
from functools import cache

import pytest

from tools import prose

FOR_USERS = ("help", "pages")
NONE_IN_MESSAGES = ("cli", "start", "vault", "plugins")


@cache
def found() -> list[prose.Found]:
    return prose.search()


def key(one: prose.Found) -> tuple[str, str]:
    return one.part, one.habit


def parts() -> list[str]:
    return sorted({part for part, _ in [*prose.counts(found()), *prose.read_bounds()]})


@pytest.mark.parametrize("habit", prose.HABITS)
def test_habit_is_counted_as_often_as_its_bound_allows(habit: str) -> None:
    """Lower bounds are written by `python tools/prose.py --update`."""
    now, bounds = prose.counts(found()), prose.read_bounds()
    wrong = []
    for part in parts():
        count, most = now[part, habit], bounds.get((part, habit), 0)
        if count > most:
            wrong.append(f"{part}: {count}, bound {most}")
            wrong += [f"  {one.place}: {one.text}" for one in found() if key(one) == (part, habit)]
        elif count < most:
            wrong.append(f"{part}: lower the bound from {most} to {count}: tools/prose.py --update")
    assert wrong == []


@pytest.mark.parametrize("part", FOR_USERS)
def test_text_for_users_has_no_bound_above_0(part: str) -> None:
    assert [key for key in prose.read_bounds() if key[0] == part] == []


@pytest.mark.parametrize("part", NONE_IN_MESSAGES)
def test_messages_of_finished_packages_have_no_bound_above_0(part: str) -> None:
    assert [key for key in prose.read_bounds() if key[0] == f"{part}, messages"] == []


@pytest.mark.parametrize(
    ("text", "habits"),
    [
        ("The window behind a prompt.", ["behind"]),
        ("Only of this alone, and so many tokens.", ["alone", "so many"]),
        ("The server tells it. It is told.", ["tell", "tell"]),
        ("A folder is no build.", ["is no"]),
        ("It is no longer so, and there is no file.", []),
        ("They were no more than two.", []),
        ("Arrays stay as they lie.", ["as they lie", "lies, stands"]),
        ("S stands for a number; outliers and layers.", []),
        ("Whoever reads, amid texts, of which there are none.", ["amid", "whoever"]),
    ],
)
def test_words_of_a_text_are_found(text: str, habits: list[str]) -> None:
    places = prose.Text(1, text).places("part", prose.BOUNDS)
    assert [one.habit for one in places if one.habit != "of which there are none"] == habits


@pytest.mark.parametrize("name", ["told", "_held", "noted", "_paired", "spelled"])
def test_a_participle_is_found_as_a_name(name: str) -> None:
    assert prose.is_participle(name)


@pytest.mark.parametrize("name", ["tell", "hold_rows", "read", "needed_bytes", "need", "seed"])
def test_a_verb_or_noun_is_not_taken_for_a_participle(name: str) -> None:
    assert not prose.is_participle(name)


def test_bounds_are_refused_where_a_sum_rises_and_may_move_between_parts() -> None:
    bounds = {("runtime", "behind"): 2, ("graphs", "behind"): 1}
    assert prose.risen(Counter({("methods", "behind"): 3}), bounds) == {}
    assert prose.risen(Counter({("graphs", "behind"): 4}), bounds) == {"behind": "4, bound 3"}
    assert prose.risen(Counter({("graphs", "alone"): 1}), bounds) == {"alone": "1, bound 0"}
