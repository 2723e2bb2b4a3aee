"""Cuts a model for tensor parallelism: every rank has a part of the heads, MLPs and vocabulary.

axes.py: along which axis each weight is cut. possible.py: for how many ranks. model.py: the traced
model of one rank, with markers for collectives. tensors.py: a rank's weights. All ranks have one
trace: they differ in their weights alone.
"""

from snapexport.exporter.ranks.axes import stored_name
from snapexport.exporter.ranks.model import cut_model, rename_whole
from snapexport.exporter.ranks.possible import require_ranks
from snapexport.exporter.ranks.tensors import of_rank

__all__ = ["cut_model", "of_rank", "rename_whole", "require_ranks", "stored_name"]
