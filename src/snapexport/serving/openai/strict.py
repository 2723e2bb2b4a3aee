"""The bases of all bodies."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Loose(BaseModel):
    """Refuses texts in place of numbers. A null counts as absent."""

    model_config = ConfigDict(extra="ignore", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: one for name, one in value.items() if one is not None}


class Strict(Loose):
    """Refuses unknown fields too."""

    model_config = ConfigDict(extra="forbid", strict=True)


TEXT_OR_OBJECTS = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]
}
"""As JSON Schema: where a text stands for a list of one part."""
