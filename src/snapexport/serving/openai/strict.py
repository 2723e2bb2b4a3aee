"""The base of all bodies."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Refuses unknown fields, and texts in place of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)


TEXT_OR_OBJECTS = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]
}
"""As JSON Schema: where a text stands for a list of one part."""
