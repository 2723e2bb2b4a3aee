"""Architectures as data: a record for each verified one, and the checks of a config.

To add one, add its record to `registry.py`, and a test checkpoint. No code outside of
this package names an architecture.
"""

from snapexport.exporter.architectures.architecture import Architecture, Experts, InGguf, RMSNorm
from snapexport.exporter.architectures.config import (
    layer_types,
    load_config,
    model_facts,
    require_verified,
    sliding_windows,
    window_of,
)
from snapexport.exporter.architectures.mlp_types import (
    EXPERTS,
    experts_of,
    mlp_types,
    with_mlp_types,
)
from snapexport.exporter.architectures.registry import VERIFIED, architecture_of, register

__all__ = [
    "EXPERTS",
    "VERIFIED",
    "Architecture",
    "Experts",
    "InGguf",
    "RMSNorm",
    "architecture_of",
    "experts_of",
    "layer_types",
    "load_config",
    "mlp_types",
    "model_facts",
    "register",
    "require_verified",
    "sliding_windows",
    "window_of",
    "with_mlp_types",
]
