"""How a compressed cache holds keys and values: as they are calculated, or in fewer bits.

Attention works on what is held: its queries and new rows are made so before, its output is made the
model's own after. The target's operators, which come in between, know nothing of it.
"""

from snapexport.contract.cache_form import CacheDType
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
    """That of a cache form's dtype."""
    return _STORAGES[dtype]
