"""Prompt lookup drafts what followed the latest occurrence of the text's longest repeated end."""

from hypothesis import given
from hypothesis import strategies as st

from snapexport.methods.several_tokens.run import RepeatingText

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def by_definition(text: list[int], count: int) -> list[int]:
    for length in (4, 3, 2):
        end = text[-length:]
        places = [i for i in range(length, len(text)) if text[i - length : i] == end]
        if places and len(text) > length:
            draft: list[int] = []
            for _ in range(count):
                draft.append((text + draft)[places[-1] + len(draft)])
            return draft
    return []


@given(TEXTS, st.integers(0, 8))
def test_draft_is_that_of_the_definition(text: list[int], count: int) -> None:
    assert RepeatingText(text).draft(count) == by_definition(text, count)


@given(TEXTS, TEXTS)
def test_appended_tokens_count_like_a_prompt(prompt: list[int], more: list[int]) -> None:
    lookup = RepeatingText(prompt)
    for token in more:
        lookup.append(token)
    assert lookup.draft(5) == RepeatingText(prompt + more).draft(5)


def test_draft_goes_on_with_itself_at_the_end_of_the_text() -> None:
    assert RepeatingText([7, 8, 9, 7, 8]).draft(6) == [9, 7, 8, 9, 7, 8]


def test_new_text_has_no_draft() -> None:
    assert RepeatingText(range(100)).draft(4) == []
