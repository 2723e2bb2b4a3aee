"""Finds the record of an architecture. Every file in `families/` is registered."""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from snapexport.exporter.architectures import families
from snapexport.exporter.architectures.architecture import Architecture

if TYPE_CHECKING:
    from transformers import PretrainedConfig

VERIFIED: dict[str, Architecture] = {}
"""Class in config.json -> record. Tests compare each one's logits, greedy tokens and kept positions
with transformers."""


def register(architecture: Architecture) -> None:
    """Add a record, or replace the one of the same name."""
    VERIFIED[architecture.name] = architecture


def architecture_of(config: "PretrainedConfig") -> Architecture:
    """The record for a config that `load_config` accepted."""
    return next(arch for arch in VERIFIED.values() if arch.model_type == config.model_type)


for _module in pkgutil.iter_modules(families.__path__):
    register(importlib.import_module(f"{families.__name__}.{_module.name}").ARCHITECTURE)
