"""Runs the model in this process, behind the `Generator` that the API asks."""

from collections.abc import AsyncGenerator, Callable

from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import OutputDelta, Request
from snapexport.serving.metrics import TextForm
from snapexport.serving.worker import Event, Stream, Streams


class InProcessGenerator(Streams):
    """A `Generator`: streams with a common timeout, and metrics in Prometheus' text form."""

    def __init__(
        self,
        llm: LLM,
        *,
        max_pending: int,
        request_seconds: float,
        labels: dict[str, str],
        gauges: dict[str, float],
        log: Callable[[str], None],
    ) -> None:
        """labels: of all metrics. gauges: constant metrics. request_seconds: a timeout."""
        super().__init__(llm, max_pending, log)
        self.request_seconds = request_seconds
        self._gauges = gauges
        self._text_form = TextForm(labels)

    def stream(self, request: Request) -> AsyncGenerator[OutputDelta]:
        """The outputs of one request."""
        return self.outputs(Stream(request=request, timeout=self.request_seconds))

    async def metrics(self) -> bytes:
        self._text_form.take(self.worker.counters.observations)
        return self._text_form.render(self._gauges | self.worker.values())

    @property
    def is_running(self) -> bool:
        return self.worker.is_running

    @property
    def needs_probe(self) -> bool:
        """Whether the LLM's last event was an internal failure."""
        return self.last_failure > self.last_output

    def _hand_out(self, events: list[tuple[Stream, Event]]) -> None:
        super()._hand_out(events)
        self._text_form.take(self.worker.counters.observations)  # they would only grow
