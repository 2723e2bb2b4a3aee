"""Reads compressed-tensors' schemes: how the weights of some modules are quantized."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from snapexport.errors import UserError
from snapexport.exporter.quantized.fp8 import WIDTH, block_size
from snapexport.exporter.quantized.groups import Groups
from snapexport.exporter.quantized.quantization import (
    KEY,
    LARGEST_GROUP,
    numbers,
    require_names,
    require_value,
    require_values,
)

Strategy = Literal["tensor", "channel", "group", "tensor_group", "block"]
_STRATEGIES: tuple[Strategy, ...] = ("tensor", "channel", "group", "tensor_group", "block")
_GROUPED = ("group", "tensor_group")
_WEIGHTS: dict[str, tuple[object, ...]] = {
    "type": ("int", "float"),
    "dynamic": (False,),
    "actorder": (None, False, "weight", "static", "group", "dynamic"),
    "is_mx": (None, False, True),
}
_NEUTRAL = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
"""Keys about calibration, and types that the tensors tell."""
_REGEX = "re:"
_LONGEST = 300
"""Characters of a regular expression, and of a name that it is compared with."""
_REPEATS = 4
_NESTED = re.compile(r"\)[*+?{]")


@dataclass(frozen=True)
class Scheme:
    """targets: modules' names, `re:` and a regular expression, or classes such as Linear."""

    targets: tuple[str, ...]
    bits: int
    is_float: bool
    symmetric: bool
    strategy: Strategy
    size: tuple[int, int]

    @property
    def fp8_block(self) -> tuple[int, int]:
        """Rows and columns of the blocks of an fp8 weight."""
        match self.strategy:
            case "tensor":
                return WIDTH, WIDTH
            case "channel":
                return 1, WIDTH
        return self.size

    def groups(self, columns: int) -> Groups:
        """The groups of a row."""
        alone = self.strategy in ("tensor", "channel")
        return Groups(columns, columns if alone else min(self.size[1], columns))

    def scales(self, rows: int, columns: int) -> tuple[int, int]:
        """The shape of a weight's scales; (1, 1) if it has one."""
        if self.strategy == "tensor":
            return 1, 1
        return -(-rows // self.size[0]), self.groups(columns).count

    def names(self, module: str) -> bool:
        """Whether a target is the module's name, or a regular expression that fits it."""
        fitting = (one.removeprefix(_REGEX) for one in self.targets if one.startswith(_REGEX))
        return module in self.targets or (
            len(module) <= _LONGEST and any(re.match(one, module) for one in fitting)
        )

    @property
    def names_classes(self) -> bool:
        """Whether a target is a class of modules."""
        return any(not one.startswith(_REGEX) and "." not in one for one in self.targets)


def read_scheme(name: str, given: object) -> Scheme | None:
    """A scheme of `config_groups`; None if it has no weights. Raises UserError."""
    if not isinstance(given, dict):
        raise UserError(f"{KEY}: the group {name:.100} is no table", "correct config.json")
    known = {key: given.get(key) for key in ("targets", "weights")}
    activations = ("input_activations", "output_activations", "format")
    require_values("compressed-tensors", given, {}, (*known, *activations))
    require_names("targets", known["targets"])
    if (weights := known["weights"]) is None:
        return None
    if not isinstance(weights, dict):
        raise UserError(f"{KEY}: the weights of {name:.100} are no table", "correct config.json")
    return _scheme(tuple(map(_target, known["targets"] or ())), dict(weights))


def _scheme(targets: tuple[str, ...], weights: dict[str, Any]) -> Scheme:
    bits = numbers("num_bits", weights.pop("num_bits", 8), range(2, 9))
    symmetric = weights.pop("symmetric", True)
    require_value("symmetric", symmetric, (True, False))
    strategy, size = _strategy(weights)
    kind = weights.get("type", "int")
    require_values("compressed-tensors", weights, _WEIGHTS, _NEUTRAL)
    if kind == "float":
        numbers("num_bits", bits, (4, 8))
        require_value("symmetric", symmetric, (True,))
    return Scheme(targets, bits, kind == "float", symmetric, strategy, size)


def _strategy(weights: dict[str, Any]) -> tuple[Strategy, tuple[int, int]]:
    """The strategy, and the rows and columns that share a scale; a strategy follows from these."""
    group, structure = weights.pop("group_size", None), weights.pop("block_structure", None)
    inferred = "tensor" if group is None else "channel" if group == -1 else "group"
    given = weights.pop("strategy", None) or inferred
    require_value("strategy", given, _STRATEGIES)
    (strategy,) = (one for one in _STRATEGIES if one == given)
    if strategy == "block":
        return strategy, block_size("block_structure", _listed(structure))
    if strategy not in _GROUPED:
        return strategy, (1, LARGEST_GROUP)
    if type(group) is not int or not 1 <= group <= LARGEST_GROUP:
        raise UserError(
            f"{KEY}: group_size is {group!r:.100}, not a number from 1 to {LARGEST_GROUP}",
            "correct config.json",
        )
    return strategy, (1, group)


def _listed(structure: object) -> object:
    """An older version's text, such as 128x128, as the list of its numbers."""
    if isinstance(structure, str) and re.fullmatch("[0-9]{1,9}x[0-9]{1,9}", structure):
        return [int(part) for part in structure.split("x")]
    return structure


def _target(target: str) -> str:
    """A target. Raises UserError for a regular expression that is none, or may take long."""
    if not target.startswith(_REGEX):
        return target
    pattern = target.removeprefix(_REGEX)
    repeats = sum(pattern.count(one) for one in "*+{")
    try:
        if len(pattern) <= _LONGEST and repeats <= _REPEATS and not _NESTED.search(pattern):
            re.compile(pattern)
            return target
    except (re.error, OverflowError, RecursionError):
        pass
    raise UserError(
        f"{KEY}: the target {target!r:.100} is no regular expression, or too long a one",
        "correct config.json",
    )


def told_of(groups: Mapping[str, object], caches: object) -> tuple[str, ...]:
    """What a build leaves out: quantized activations and caches."""
    told = []
    of_groups = [one for one in groups.values() if isinstance(one, dict)]
    if any(
        one.get(key) for one in of_groups for key in ("input_activations", "output_activations")
    ):
        told.append("activations stay in the build's dtype: the checkpoint's are quantized")
    if caches:
        told.append("the checkpoint's scales of caches are not read: see --cache-dtype")
    return tuple(told)
