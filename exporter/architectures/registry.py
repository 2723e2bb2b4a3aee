"""Finds the record of an architecture: `families/` is searched, so that a new file is enough."""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from snapexport.exporter.architectures import families
from snapexport.exporter.architectures.architecture import Architecture

if TYPE_CHECKING:
    from transformers import PretrainedConfig

VERIFIED: dict[str, Architecture] = {}
"""By the class that config.json names. The tests compare logits, greedy tokens and kept positions
of each with transformers'."""


def register(architecture: Architecture) -> None:
    """Add a record, in place of an earlier one of the same name."""
    VERIFIED[architecture.name] = architecture


def architecture_of(config: "PretrainedConfig") -> Architecture:
    """The record for a config that `load_config` has taken."""
    return next(one for one in VERIFIED.values() if one.model_type == config.model_type)


for _module in pkgutil.iter_modules(families.__path__):
    register(importlib.import_module(f"{families.__name__}.{_module.name}").ARCHITECTURE)
