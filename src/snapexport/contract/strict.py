"""What every part of the manifest is made of."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Refuses unknown keys and values of another type: either could mean a wrong run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
