"""Runs the bodies of the ONNX functions in ONNX Runtime, as references of the kernels."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from snapexport.graphs.functions.vote import DEFAULTS
from tests.graphs.bodies import calling, function, run


def call_body(
    name: str,
    inputs: list[Tensor],
    attributes: dict[str, Any],
    vote: Mapping[str, str] = DEFAULTS,
) -> list[Tensor]:
    """Outputs for the inputs, in their order; vote: SnapKVSelect's options."""
    kernel = attributes.get("pool_kernel", [1, 1])[1]
    proto = function(name, vote, kernel, softcapped=bool(attributes.get("softcap")))
    feeds = {f"input_{index}": one.numpy() for index, one in enumerate(inputs)}
    outputs = run(calling(proto, feeds, **attributes), feeds)
    return [torch.from_numpy(one) for one in outputs.values()]
