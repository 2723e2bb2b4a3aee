"""Flags that a plan advises beside those that it chooses."""

from typing import Any

import pytest

from snapexport.builder.plan.alternatives import reasons
from tests.builder.test_plan import GIB, LLAMA_8B, llama, planned

ADVICE = "for questions that come later: --calibrate"
FEW = llama(1, 4096, 14336, 32)


@pytest.mark.parametrize(
    ("model", "given", "is_advised"),
    [
        (LLAMA_8B, {}, True),
        (LLAMA_8B, {"policy": "full"}, False),
        (LLAMA_8B, {"policy": "streaming"}, False),
        (LLAMA_8B, {"target": "tensorrt"}, False),
        (LLAMA_8B, {"vote_queries": "repeat"}, False),
        (FEW, {}, False),
    ],
)
def test_head_budgets_are_advised_where_many_heads_vote_and_texts_can_be_measured(
    model: Any, given: dict[str, Any], is_advised: bool
) -> None:
    made = planned(model, 600 * GIB, 8192, **given)
    assert (ADVICE in reasons(made.request, made.recommendation)) == is_advised
