"""The base of all bodies."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Refuses unknown fields, and texts in place of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)
