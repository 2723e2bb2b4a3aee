"""Mean queries of texts: the file that has them.

    {"format": "snapexport mean queries 1",
     "layers": [{"mean": [[0.25, ...], ...], "magnitude": [[1.5, ...], ...]}, null, ...],
     "calibration": {...}}

`layers` has for each layer the mean of its queries before RoPE, [H,D], and the mean magnitude of
each pair of channels that RoPE rotates, [H,P]; null for a layer that does not vote. `calibration`
is for readers: what the numbers come from.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.model_facts import ModelFacts
from snapexport.errors import UserError
from snapexport.methods.method import read_calibration

FORMAT = "snapexport mean queries 1"
MOST_BYTES = 64 << 20

_FORM = "write it with `snapexport calibrate BUILD --mean-queries`"
_ANOTHER = "use mean queries of this model"


Floats = NDArray[np.float32]


class LayerQueries(NamedTuple):
    """A layer's queries before RoPE over texts. mean: [H,D]. magnitude: of each pair, [H,P]."""

    mean: Floats
    magnitude: Floats


@dataclass(frozen=True)
class MeanQueries:
    """Measured queries, by layer; of the layers that vote."""

    layers: Mapping[int, LayerQueries]
    count: int

    @classmethod
    def read(cls, path: Path) -> "MeanQueries":
        """Read a file of mean queries. Raises UserError."""
        rows = read_calibration(path, MOST_BYTES, FORMAT, set(), _FORM)["layers"]
        layers = {layer: _layer(path, layer, row) for layer, row in enumerate(rows) if row}
        return cls(layers, len(rows))

    def text(self, calibration: dict[str, Any]) -> str:
        """The content of a file. calibration: what was measured."""
        rows = [
            {name: _round(one) for name, one in self.layers[layer]._asdict().items()}
            if layer in self.layers
            else None
            for layer in range(self.count)
        ]
        return json.dumps({"format": FORMAT, "calibration": calibration, "layers": rows}) + "\n"

    def require_model(self, model: ModelFacts) -> None:
        """Raise UserError for the queries of another model."""
        if self.count != model.num_hidden_layers:
            raise UserError(
                f"the mean queries are of {self.count} layers, the model has "
                f"{model.num_hidden_layers}",
                _ANOTHER,
            )
        for index, layer in model.cached.items():
            found = self.layers.get(index)
            shape = None if found is None else found.mean.shape
            if shape is not None and shape != (layer.heads, layer.key_dim):
                raise UserError(
                    f"layer {index} has mean queries of {shape[0]} heads of {shape[1]}, the model "
                    f"{layer.heads} of {layer.key_dim}",
                    _ANOTHER,
                )
            if shape is None and not layer.reach:
                raise UserError(f"layer {index} has no mean queries", _ANOTHER)


def _layer(path: Path, layer: int, row: Any) -> LayerQueries:
    where = f"{path}: layer {layer}"
    if not isinstance(row, dict) or set(row) != {"mean", "magnitude"}:
        raise UserError(f"{where} is not a table of mean and magnitude", _FORM)
    mean, magnitude = (_matrix(where, name, row[name]) for name in ("mean", "magnitude"))
    if mean.shape[0] != magnitude.shape[0] or 2 * magnitude.shape[1] > mean.shape[1]:
        raise UserError(f"{where}: mean {mean.shape} and magnitude {magnitude.shape}", _FORM)
    return LayerQueries(mean, magnitude)


def _matrix(where: str, name: str, rows: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    lists = isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows)
    if not lists or len({len(row) for row in rows}) > 1:
        raise UserError(f"{where}: {name} is not a matrix", _FORM)
    if not all(type(value) in (int, float) and abs(value) < 1e30 for row in rows for value in row):
        raise UserError(f"{where}: {name} has a value that is not a number", _FORM)
    return np.array(rows, np.float32)


def _round(matrix: Any) -> list[list[float]]:
    return [[float(f"{value:.6g}") for value in row] for row in matrix.tolist()]
