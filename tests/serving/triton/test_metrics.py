"""The model's metrics: names, and values after known traffic."""

from pathlib import Path

from snapexport.contract.manifest import Manifest
from snapexport.contract.memory import cache_bytes
from tests.serving.triton.client import IDLE, Client
from tests.serving.triton.server import Server


def test_metrics_count_known_traffic(client: Client) -> None:
    before = client.quiet()
    inputs = {"input_ids": [5] * 300, "ignore_eos": True}
    client.generate(**inputs, max_tokens=10)
    client.stream_all(**inputs, max_tokens=1)
    with client.stream(**inputs, max_tokens=1900) as stream:
        stream.next()
    after = client.quiet()
    assert after["requests_finished_total"] == before["requests_finished_total"] + 2
    gained = {name: after[name] - before[name] for name in after if name in before}
    assert gained["prompt_tokens_total"] == 900
    assert gained["requests_cancelled_total"] == 1
    assert gained["requests_failed_total"] == gained["requests_refused_total"] == 0
    assert 12 <= gained["generated_tokens_total"] < 1911
    assert gained["queue_seconds_count"] == gained["time_to_first_token_seconds_count"] == 3
    assert gained["time_per_output_token_seconds_count"] == 1
    assert 0 < gained["time_to_first_token_seconds_sum"] < 30
    assert 0 < gained["time_per_output_token_seconds_sum"] < 3


def test_cache_metrics_are_in_bytes(client: Client, build: Path) -> None:
    cache, metrics = cache_bytes(Manifest.read(build)), client.metrics()
    assert metrics["slots"] == 8
    assert metrics["cache_bytes"] == cache.decode < metrics["full_cache_bytes"] == cache.full


def test_running_requests_metric_counts_running_streams(client: Client) -> None:
    client.settled(**IDLE)
    long = {"text_input": "The vault", "max_tokens": 2200, "ignore_eos": True}
    with client.stream(**long) as one, client.stream(**long) as other:
        one.next()
        other.next()
        client.settled(requests_running=2, requests_waiting=0, slots_used=2)
    client.settled(**IDLE)


def test_server_without_metrics_serves(repository: Path) -> None:
    with Server(repository, flags=["--allow-metrics=false"]) as server:
        assert "Traceback" not in server.log()
        assert Client(server, "vault").generate(text_input="The", max_tokens=2).reason == "length"
