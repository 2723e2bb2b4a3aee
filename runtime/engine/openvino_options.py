"""Holds what OpenVINO can be asked for, without loading it."""

from typing import Literal, get_args

Device = Literal["CPU", "GPU", "NPU"]
DEVICES: tuple[Device, ...] = get_args(Device)
Precision = Literal["f32", "bf16", "f16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
