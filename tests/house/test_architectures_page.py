"""The page of decoders lists every model type, and compares those that tests compare."""

import re
from pathlib import Path

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.architectures.listed import HELD
from tests.oracle.families import FAMILIES
from tests.oracle.hybrids import HYBRIDS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "architectures.md"
AGAIN = "make architectures"


def rows(title: str) -> list[str]:
    """The model types of a section."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    return re.findall(r"^\| ([\w-]+) \|", section, re.M)[1:]


def test_page_lists_every_model_type_of_the_installed_transformers_once() -> None:
    listed = [*rows("Built and compared"), *rows("Built as their text part"), *rows("Refused")]
    assert sorted(listed) == sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), AGAIN


def test_types_that_the_page_compares_are_those_of_the_tests() -> None:
    compared = {name.partition(".")[0] for name in (*FAMILIES, *HYBRIDS)} | HELD.keys()
    assert set(rows("Built and compared")) == compared, AGAIN
