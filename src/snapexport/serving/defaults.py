"""Values that requests take which name none: the server's own, before the checkpoint's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from snapexport.errors import flag_of
from snapexport.runtime.requests.generation_config import CONFIG, served_sampling
from snapexport.serving.options import ServeOptions

OWN = ("temperature", "top_p", "max_tokens")
"""Options of the server. They come before the checkpoint's values."""


@dataclass(frozen=True)
class Defaults:
    """values: by names of SamplingParams. sources: where each comes from."""

    values: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: ServeOptions) -> "Defaults":
        """Those of a build and its server. Raises UserError for a wrong generation_config.json."""
        found = {} if options.no_generation_config else served_sampling(options.build)
        own = {name: value for name in OWN if (value := getattr(options, name)) is not None}
        sources = dict.fromkeys(found, CONFIG) | {name: flag_of(name) for name in own}
        return cls(found | own, sources)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {value:g} ({self.sources[name]})" for name, value in self.values.items()
        )
