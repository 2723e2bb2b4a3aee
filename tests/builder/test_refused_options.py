"""Options of a build that do not go together are refused before anything is read."""

from pathlib import Path
from typing import Any

import pytest

from snapexport.builder import BuildOptions
from snapexport.errors import UserError

FP16 = {"cache_dtype": "fp16"}
INT8 = {"cache_dtype": "int8"}
VALID = {"decode_attention": "valid"}
INT4 = {"weights": "int4"}
FP8 = {"weights": "fp8"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (FP16 | {"target": "tensorrt"}, "fp16 is not supported with --target tensorrt"),
    (FP16 | {"dtype": "bf16", "target": "portable"}, "--target portable --dtype bf16"),
    (FP16 | {"policy": "full"}, "with --policy full"),
    (FP16 | VALID, "fp16 is not supported with --decode-attention valid"),
    ({"dtype": "fp16", "cache_dtype": "fp32"}, "fp32 is not supported with"),
    ({"cache_dtype": "bf16"}, "bf16 is not supported with"),
    ({"cache_dtype": "fp4"}, "--cache-dtype 'fp4' is not known"),
    (INT8 | {"target": "portable"}, "int8 is not supported with --target portable"),
    (INT8 | {"target": "tensorrt"}, "int8 is not supported with --target tensorrt"),
    (INT8 | {"dtype": "fp16"}, "int8 is not supported with --target onnxruntime --dtype fp16"),
    (INT8 | {"policy": "full"}, "with --policy full"),
    (INT8 | {"decode_attention": "all"}, "int8 is not supported with --decode-attention all"),
    (VALID | {"target": "portable"}, "valid is not supported with --target portable"),
    (VALID | {"target": "tensorrt"}, "valid is not supported with --target tensorrt"),
    (VALID | {"policy": "full"}, "with --policy full"),
    ({"decode_attention": "some"}, "--decode-attention 'some' is not known"),
    (INT4 | {"target": "portable"}, "--weights int4 is not supported"),
    (INT4 | {"dtype": "bf16"}, "--weights int4 is not supported"),
    (INT4 | {"link_weights": True}, "--link-weights is not supported with --weights int4"),
    (INT4 | {"share_weights": True}, "--share-weights is not supported with --weights int4"),
    (FP8 | {"target": "onnxruntime"}, "not supported with --target onnxruntime"),
    (FP8 | {"target": "portable"}, "not supported with --target portable"),
    (FP8 | {"target": "tensorrt", "share_weights": True}, "--share-weights is not supported"),
    (INT4 | {"target": "tensorrt", "share_weights": True}, "--share-weights is not supported"),
    ({"decode_batches": (1, 0)}, "--decode-batches 0"),
    ({"decode_batches": (1, 5)}, "--decode-batches 5"),
    ({"policy": "full", "prefill_budget": 48}, "--prefill-budget is not supported with --policy"),
    ({"prefill_budget": 48, "tensor_parallel": 2}, "--prefill-budget is not supported with"),
    ({"prefill_budget": -1}, "--prefill-budget -1 is below 0"),
    ({"policy": "full", "extend": True}, "--extend is not supported with --policy full"),
]


@pytest.mark.parametrize(("choice", "message"), REFUSED, ids=str)
def test_options_that_do_not_go_together_are_refused(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        BuildOptions.of(model="m", out=Path("b"), L_max=64, **choice)
    assert error.value.hint
