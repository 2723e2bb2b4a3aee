"""Runs the workload on the runtime: without server, network or threads."""

from collections.abc import Callable

from snapexport.bench.load.exchange import Exchange
from snapexport.bench.load.workload import Workload
from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import SamplingParams


def drive(llm: LLM, workload: Workload, clock: Callable[[], float]) -> list[Exchange]:
    """All the exchanges, in the order in which they were sent."""
    params = SamplingParams(max_tokens=workload.max_tokens, ignore_eos=True)
    waiting = [iter(prompts) for prompts in workload.prompts]
    running: dict[int, tuple[int, Exchange]] = {}
    exchanges: list[Exchange] = []

    def ask(client: int) -> None:
        prompt = next(waiting[client], None)
        if prompt is not None:
            exchanges.append(Exchange(clock()))
            running[llm.submit(prompt, params)] = client, exchanges[-1]

    for client in range(len(waiting)):
        ask(client)
    while running:
        deltas = llm.step()
        now = clock()
        for delta in deltas:
            client, exchange = running[delta.request_id]
            exchange.arrived(now, len(delta.token_ids))
            if delta.finish_reason:
                if delta.finish_reason == "error":
                    exchange.error = "the model's logits were no numbers"
                del running[delta.request_id]
                ask(client)
    return exchanges
