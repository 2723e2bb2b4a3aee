"""Storage of keys and values in a compressed cache: as they are calculated, or in fewer bits.

Queries and new rows are converted before attention, its output is converted back after it. The
target's operators in between know nothing of the storage.
"""

from snapexport.contract.targets import CacheDType
from snapexport.graphs.passes.storage.as_calculated import AsCalculated
from snapexport.graphs.passes.storage.base import Prompt, States, Storage, cast
from snapexport.graphs.passes.storage.float16 import Float16
from snapexport.graphs.passes.storage.int8 import Int8

__all__ = ["Prompt", "States", "Storage", "cast", "storage_of"]

_STORAGES: dict[CacheDType | None, Storage] = {
    None: AsCalculated(),
    "fp16": Float16(),
    "int8": Int8(),
}


def storage_of(dtype: CacheDType | None) -> Storage:
    """The storage for `GraphOptions.cache_dtype`; None: the model's own type."""
    return _STORAGES[dtype]
