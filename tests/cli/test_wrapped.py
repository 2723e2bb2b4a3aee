"""Lines of answers and notes: broken at spaces as textwrap does, however the text comes."""

import textwrap

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from snapexport.cli.console import Wrapped, fold

CODE = (
    "Use it so:\n```python\nx = some_function(with_a, very_long, line_of_arguments)\n```\nand so on"
)


def wrapped(text: str, width: int, step: int = 1) -> str:
    shown: list[str] = []
    wrap = Wrapped(shown.append, lambda: width)
    for start in range(0, len(text), step):
        wrap(text[start : start + step])
    wrap.end()
    return "".join(shown)


WORDS = st.lists(st.text("abcdé.-", min_size=1, max_size=12), min_size=1, max_size=30)


@given(words=WORDS, width=st.integers(4, 40), step=st.integers(1, 9))
def test_prose_breaks_where_textwrap_breaks_it(words: list[str], width: int, step: int) -> None:
    text = " ".join(words)
    filled = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    assert wrapped(text, width, step) == filled


@given(text=st.text("漢字、。「」 ab👩\u200d👧\ufe0f\u0301\n", max_size=60), step=st.integers(1, 5))
def test_wide_characters_count_twice_and_none_is_lost(text: str, step: int) -> None:
    shown = wrapped(text, 12, step)
    assert "".join(shown.split()) == "".join(text.split())
    assert shown == wrapped(text, 12)


def test_wide_text_without_spaces_breaks_before_no_full_stop() -> None:
    shown = wrapped("漢字かな漢字。「漢字」漢字", 12).split("\n")
    assert shown == ["漢字かな漢", "字。「漢字」", "漢字"]
    assert max(map(cell_len, shown)) == 12


def test_code_and_tables_stay_as_they_are() -> None:
    for text in (CODE, "| a table | of two columns |\n", "    indented code of a long line\n"):
        assert wrapped(text, 20) == text
    assert wrapped(CODE + " in a long line", 20).endswith("```\nand so on in a long\nline")


def test_commands_in_notes_stay_whole() -> None:
    command = "`snapexport generate llama.build --prompt-file report.txt`"
    assert fold(f"{'word ' * 10}{command} x") == f"{('word ' * 10).strip()}\n{command} x"


@given(numbers=st.lists(st.integers(0, 9999), min_size=1, max_size=40))
def test_numbers_with_units_stay_whole_within_80_columns(numbers: list[int]) -> None:
    text = ", ".join(f"part {number} MiB" for number in numbers)
    lines = fold(text).split("\n")
    assert " ".join(lines) == text and max(map(len, lines)) <= 80
    assert all(not line.startswith("MiB") for line in lines)
