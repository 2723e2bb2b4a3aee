"""The object `geometry` of manifest.json: every value of a cache geometry by a flat key."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import core_schema

from snapexport.contract.columns import Column
from snapexport.contract.geometry import CacheGeometry, Policy
from snapexport.contract.head_groups import HeadGroups
from snapexport.contract.slots import Slots
from snapexport.contract.steps import Steps
from snapexport.contract.vote import Vote
from snapexport.errors import UserError

_VOTE = Vote()


@dataclass(frozen=True, slots=True)
class GeometryRecord:
    """A cache geometry, as a manifest has it.

    num_layers: the number of caches, of which L_sink, L_recent and K have a value each. Layers are
    more with cache_of, and fewer with head_groups. The other values are those of `CacheGeometry`
    and of its parts. A manifest has cache_of and chunk only where they are not the defaults.
    """

    policy: Policy
    L_max: int
    num_layers: Annotated[int, Field(ge=1, le=1 << 16)]
    L_sink: Column[int]
    L_recent: Column[int]
    K: Column[int]
    L_obs: int = _VOTE.L_obs
    pool_kernel: int = _VOTE.pool_kernel
    vote: str = _VOTE.vote
    pool: str = _VOTE.pool
    softmax: str = _VOTE.softmax
    group: str = _VOTE.group
    budget: str = _VOTE.budget
    vote_queries: str = _VOTE.vote_queries
    tokens_per_step: int = Steps().tokens_per_step
    head_groups: HeadGroups = ()
    cache_of: tuple[int, ...] = ()
    chunk: Column[int] = 0

    def geometry(self) -> CacheGeometry:
        """The geometry that the record describes. Raises UserError for invalid values."""
        parts = self._slots(), self._of(Vote), self._of(Steps)
        return CacheGeometry(self.policy, self.L_max, *parts)

    @classmethod
    def of(cls, geometry: CacheGeometry) -> "GeometryRecord":
        """The record of a geometry."""
        parts = geometry.slots, geometry.vote, geometry.steps
        values = {name: getattr(part, name) for part in parts for name in part.__slots__}
        values["num_layers"] = geometry.slots.num_caches
        return cls(geometry.policy, geometry.L_max, **values)

    def fields(self) -> dict[str, Any]:
        """The keys and values of the manifest."""
        found = asdict(self)
        absent = [name for name in ("cache_of", "chunk") if not found[name]]
        return {name: value for name, value in found.items() if name not in absent}

    def _slots(self) -> Slots:
        layers = len(self.head_groups or self.cache_of) or self.num_layers
        columns = self.L_sink, self.L_recent, self.K, self.head_groups, self.cache_of, self.chunk
        slots = Slots(layers, *columns)
        if slots.num_caches != self.num_layers:
            raise UserError(
                f"the layers need {slots.num_caches} caches, the geometry has {self.num_layers}",
                "build it again",
            )
        return slots

    def _of(self, part: type[Any]) -> Any:
        return part(**{name: getattr(self, name) for name in part.__slots__})


def _schema(_: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
    record = handler(GeometryRecord)
    return core_schema.json_or_python_schema(
        core_schema.no_info_after_validator_function(GeometryRecord.geometry, record),
        core_schema.is_instance_schema(CacheGeometry),
        serialization=core_schema.plain_serializer_function_ser_schema(
            lambda geometry: GeometryRecord.of(geometry).fields()
        ),
    )


RecordedGeometry = Annotated[CacheGeometry, GetPydanticSchema(_schema)]
"""A field of a manifest: a CacheGeometry, which JSON has as a GeometryRecord."""
