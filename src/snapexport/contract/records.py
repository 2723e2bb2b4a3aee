"""The objects `geometry` and `graph_options` of manifest.json, and what they stand for here."""

import json
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from typing import Annotated, Any, get_type_hints

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema, TypeAdapter
from pydantic_core import core_schema

from snapexport.contract.geometry import CacheGeometry, Policy, Steps
from snapexport.contract.graph_options import CORE_FIELDS, GraphOptions, MethodOptions
from snapexport.contract.slots import Column, HeadGroups, Slots
from snapexport.contract.vote import Vote
from snapexport.errors import UserError
from snapexport.methods import table
from snapexport.methods.table import voter_of

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
    vote_queries: str = _VOTE.voter.name
    step_tokens: Annotated[int, Field(ge=1)] = Steps().tokens
    head_groups: HeadGroups = ()
    cache_of: tuple[int, ...] = ()
    chunk: Column[int] = 0

    def geometry(self) -> CacheGeometry:
        """The geometry that the record describes. Raises UserError for invalid values."""
        options = {name: getattr(self, name) for name in Vote.__slots__ if name != "voter"}
        vote = Vote(**options, voter=voter_of(self.vote_queries))
        steps = Steps(self.step_tokens)
        return CacheGeometry(self.policy, self.L_max, self._slots(), vote, steps)

    @classmethod
    def of(cls, geometry: CacheGeometry) -> "GeometryRecord":
        """The record of a geometry."""
        parts = geometry.slots, geometry.vote
        values = {name: getattr(part, name) for part in parts for name in part.__slots__}
        values["vote_queries"] = values.pop("voter").name
        values["step_tokens"] = geometry.steps.tokens
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


def _geometry_schema(_: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
    record = handler(GeometryRecord)
    return core_schema.json_or_python_schema(
        core_schema.no_info_after_validator_function(GeometryRecord.geometry, record),
        core_schema.is_instance_schema(CacheGeometry),
        serialization=core_schema.plain_serializer_function_ser_schema(
            lambda geometry: GeometryRecord.of(geometry).fields()
        ),
    )


RecordedGeometry = Annotated[CacheGeometry, GetPydanticSchema(_geometry_schema)]
"""A field of a manifest: a CacheGeometry, which JSON has as a GeometryRecord."""

_HINTS = get_type_hints(GraphOptions)
OptionsRecord = make_dataclass(
    "OptionsRecord",
    [
        *(
            (one.name, _HINTS[one.name], field(default=one.default))
            for one in fields(GraphOptions)
            if one.name in CORE_FIELDS
        ),
        ("methods", dict[str, dict[str, Any]], field(default_factory=dict)),
    ],
    frozen=True,
    kw_only=True,
)
"""Graph options, as a manifest has them: the common ones, and those of each method by its name."""


def _options(record: Any) -> GraphOptions:
    """The graph options that a record describes. Raises ValueError for unknown methods or keys."""
    common = {name: getattr(record, name) for name in CORE_FIELDS}
    known = {one.name: one.options for one in table.METHODS if one.options}
    methods: list[MethodOptions] = []
    for name, values in record.methods.items():
        if (kind := known.get(name)) is None:
            raise ValueError(f"no method {name!r:.100} has options")
        if unknown := values.keys() - {one.name for one in fields(kind)}:
            raise ValueError(f"the method {name} has no option {min(unknown)!r:.100}")
        methods.append(TypeAdapter(kind).validate_json(json.dumps(values), strict=True))
    return GraphOptions(**common, methods=tuple(methods))


def _options_record(options: GraphOptions) -> dict[str, Any]:
    """The keys and values of the manifest."""
    found: dict[str, Any] = {name: getattr(options, name) for name in CORE_FIELDS}
    found["methods"] = {
        method.name: {
            one.name: getattr(options.of(method.options), one.name)
            for one in fields(method.options)
            if one.metadata.get("recorded", True)
        }
        for method in table.METHODS
        if method.options and options.of(method.options) != method.options()
    }
    return found


def _options_schema(_: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
    return core_schema.json_or_python_schema(
        core_schema.no_info_after_validator_function(_options, handler(OptionsRecord)),
        core_schema.is_instance_schema(GraphOptions),
        serialization=core_schema.plain_serializer_function_ser_schema(_options_record),
    )


RecordedOptions = Annotated[GraphOptions, GetPydanticSchema(_options_schema)]
"""A field of a manifest: GraphOptions, which JSON has as an `OptionsRecord`."""
