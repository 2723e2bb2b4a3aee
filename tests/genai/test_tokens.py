"""The comparison of two tokenizers, and what users are told of it."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from snapexport.genai import tokens
from snapexport.genai.tokens import TEXTS, Comparison, compare_tokenizers, find_differences


def test_texts_with_other_ids_are_found() -> None:
    def ours(text: str) -> list[int]:
        return [*map(ord, text)]

    assert find_differences(ours, ours) == ()
    assert find_differences(ours, lambda text: [*map(ord, text.strip())]) == TEXTS[1:4]
    assert find_differences(ours, lambda text: [0, *ours(text)]) == TEXTS


def test_tokens_before_a_text_are_known(vault: Path) -> None:
    ours = Tokenizer.from_file(str(vault / "tokenizer.json"))
    assert tokens._start(ours) == (0,)
    ours.post_processor = None  # type: ignore[assignment]
    assert tokens._start(ours) == ()


def test_folder_without_a_tokenizer_has_no_comparison(tmp_path: Path) -> None:
    assert compare_tokenizers(tmp_path) is None


OPTION = 'it puts 0 before a text only after update_options(add_special_tokens="true")'


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (Comparison((), True), "the same ids as ours for 8 texts"),
        (Comparison((0,), True), f"the same ids as ours for 8 texts; {OPTION}"),
        (Comparison((0,)), f"not compared: onnxruntime-genai is not installed here; {OPTION}"),
        (
            Comparison((), True, TEXTS[:2]),
            f"other ids than ours for 2 of 8 texts, such as '{TEXTS[0]}'. Pass token ids",
        ),
        (
            Comparison((), failed="no such model"),
            "onnxruntime-genai cannot read it: no such model. Pass token ids",
        ),
    ],
)
def test_summary_says_what_was_compared(found: Comparison, wanted: str) -> None:
    assert found.summary == wanted
