"""The options of a load test. The command line's flags and defaults are made from them."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from snapexport.bench.options import require_at_least, require_numbers
from snapexport.contract.errors import UserError


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Every choice of `snapexport bench --server`. None: chosen from the build.

    server: Triton's HTTP address. server_model: the model's name there. clients: numbers of
    concurrent clients. requests: of each client, in each of `repeat` rounds. prompt_tokens,
    max_tokens: of a request.
    """

    server: str
    server_model: str | None = None
    clients: tuple[int, ...] = (1, 4, 16, 64)
    requests: int = 2
    prompt_tokens: int | None = None
    max_tokens: int = 64
    repeat: int = 5
    threads: int | None = None
    prepack: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require_numbers("clients", self.clients)
        for name, least in (("requests", 1), ("max_tokens", 1), ("repeat", 1), ("seed", 0)):
            require_at_least(name, getattr(self, name), least)
        for name in ("prompt_tokens", "threads"):
            if (given := getattr(self, name)) is not None:
                require_at_least(name, given, 1)
        parts = urlsplit(self.server)
        if parts.scheme != "http" or not parts.hostname:
            raise UserError(
                f"--server {self.server} is no HTTP address",
                "give Triton's, such as http://127.0.0.1:8000",
            )
