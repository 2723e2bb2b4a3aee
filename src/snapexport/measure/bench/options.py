"""The options of `snapexport bench`. The command line's flags and defaults are made from them."""

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from snapexport.errors import UserError
from snapexport.measure.options import require
from snapexport.runtime.engine.openvino_options import Precision

BenchBackend = Literal["onnxruntime", "openvino"]
"""What runs graphs on a CPU: the probes of the roofline run there."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options without --server. None: chosen from the build.

    contexts: tokens of the prompts. batches: active batch slots. decode_steps: timed steps in a
    row, in each of `repeat` rounds. backend, precision, threads, prepack: as those of
    `open_executor`.
    """

    contexts: tuple[int, ...] | None = None
    batches: tuple[int, ...] | None = None
    decode_steps: int = 16
    repeat: int = 5
    baseline: bool = False
    backend: BenchBackend = "onnxruntime"
    precision: Precision | None = None
    threads: int | None = None
    prepack: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require(self, contexts=1, batches=1, decode_steps=1, repeat=1, seed=0, threads=1)

    @property
    def running(self) -> dict[str, Any]:
        """What runs the graphs: arguments of `open_executor`."""
        names = "backend", "precision", "threads", "prepack"
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options with --server. None: chosen from the build.

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
        require(self, clients=1, requests=1, max_tokens=1, repeat=1, seed=0)
        require(self, prompt_tokens=1, threads=1)
        parts = urlsplit(self.server)
        if parts.scheme != "http" or not parts.hostname:
            raise UserError(
                f"--server {self.server} is no HTTP address",
                "give Triton's, such as http://127.0.0.1:8000",
            )
