"""One process against prefill and decode apart, with fake deployments: nothing needs Dynamo."""

import json
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event, Thread, main_thread
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from tools.studies.speed import deployment_load
from tools.studies.speed.__main__ import main
from tools.studies.speed.deployment_load import mean_itl, pause, summed_up
from tools.studies.speed.deployments import Deployment
from tools.studies.speed.experiments import cluster
from tools.studies.speed.openai_clients import Exchange, OpenAIModel, Workload
from tools.studies.tests import fake_openai
from tools.studies.tests.fake_openai import FakeOpenAI, interpreter

PROMPT = 300


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    server = FakeOpenAI()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_build_no_pause(monkeypatch: pytest.MonkeyPatch, tiny_build: Build) -> None:
    monkeypatch.setattr(cluster, "_build", lambda setup, options: tiny_build)
    monkeypatch.setattr(deployment_load, "IDLE_SECONDS", 0.02)


def drive(server: FakeOpenAI, *firsts: int, max_tokens: int = 5) -> list[Exchange]:
    ticks = count()
    model = OpenAIModel(f"{server.url}/v1", "tiny")
    prompts = [[[first, 7, 8]] for first in firsts]
    return model.drive(Workload(prompts, max_tokens), lambda: float(next(ticks)))


def test_openai_client_counts_tokens_by_the_usage_at_the_end(server: FakeOpenAI) -> None:
    (one,) = drive(server, 9)
    # sent at 0; three chunks at 1, 2 and 3 hold five tokens
    assert (one.tokens, one.error, one.ttft) == (5, None, 1.0)
    assert (mean_itl(one), pause(one)) == (2 / 4, 1.0)
    (body,) = server.bodies
    assert body["prompt"] == [9, 7, 8] and body["ignore_eos"] and body["temperature"] == 0


def test_openai_client_reports_refused_and_short_answers(server: FakeOpenAI) -> None:
    refused, short, good = drive(server, fake_openai.REFUSED, fake_openai.SHORT, 9)
    assert refused.error == 'HTTPException: status 503: {"error": "no room"}'
    assert short.error == "an answer ended with 4 of 5 tokens"
    assert good.error is None


def test_openai_client_sends_its_next_prompt_after_each_answer_and_each_error(
    server: FakeOpenAI,
) -> None:
    prompts, ticks = [[[first, 7, 8] for first in (fake_openai.REFUSED, 9, 10)]], count()
    model = OpenAIModel(f"{server.url}/v1", "tiny")
    refused, *good = model.drive(Workload(prompts, 5), lambda: float(next(ticks)))
    assert refused.error and [(one.error, one.tokens) for one in good] == [(None, 5), (None, 5)]
    assert good[1].sent > good[0].arrivals[-1][0]
    assert [body["prompt"][0] for body in server.bodies] == [fake_openai.REFUSED, 9, 10]


def test_openai_client_counts_requests_to_a_vanished_server_as_errors() -> None:
    server = FakeOpenAI()
    server.server_close()
    errors = [one.error for one in drive(server, 9, 9)]
    assert ["refused" in str(error) for error in errors] == [True, True]


def test_interrupted_openai_client_closes_its_connection(server: FakeOpenAI) -> None:
    """Ctrl-C while the server holds every stream."""
    server.hold, interrupted = Event(), Event()

    def interrupt() -> None:
        """Again until it is heard: a signal just before a thread waits does not wake it."""
        server.answered.wait(20)
        while not interrupted.wait(0.2):
            signal.pthread_kill(main_thread().ident or 0, signal.SIGUSR1)

    def leave(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise SystemExit(130)

    former = signal.signal(signal.SIGUSR1, leave)
    thread = Thread(target=interrupt)
    thread.start()
    model = OpenAIModel(f"{server.url}/v1", "tiny")
    try:
        with pytest.raises(SystemExit):
            model.drive(Workload([[[9, 7], [9, 8]]], 4), lambda: 0.0)
    finally:
        signal.signal(signal.SIGUSR1, former)
        server.hold.set()
        thread.join()
    assert len(server.bodies) == 1


def test_workers_share_the_machines_threads() -> None:
    shares = [Deployment(*one).threads(8) for one in ((0, 1), (1, 1), (1, 2), (4, 12))]
    assert shares == [8, 4, 2, 1]


def run(folder: Path, *given: str, python: Path | None = None) -> int:
    flags = ["--quick", "--work", str(folder), "--out", str(folder)]
    return main(["cluster", *flags, "--dynamo-python", str(python or interpreter(folder)), *given])


def report_of(folder: Path) -> Any:
    return json.loads((folder / "cluster.json").read_text())


def test_every_deployment_gets_every_number_of_clients_in_each_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--rounds", "2") == 0
    report = report_of(tmp_path)
    load = report["sections"]["load"]
    cells = [(one["round"], one["deployment"], one["clients"]) for one in load]
    names = [one.name for one in cluster.DEPLOYMENTS]
    forth = [(0, name, clients) for name in names for clients in (1, 2)]
    assert cells == forth + [(1, name, clients) for name in names[::-1] for clients in (1, 2)]
    assert all(one["failed"] == 0 and one["requests"] == 4 for one in load)
    assert {one["deployment"] for one in load if "row_bytes" in one} == {"1 + 1", "1 + 2"}
    moved = next(one for one in load if "row_bytes" in one)
    assert (moved["rows"], moved["row_bytes"], moved["fetch_seconds"]) == (4, 100, 0.5)
    assert moved["of_full_cache"] == pytest.approx(100 / (10 * PROMPT), rel=1e-4)
    assert report["complete"] and report["machine"]["versions"]["nixl"] == "1"
    assert str(tmp_path) not in (tmp_path / "cluster.json").read_text()
    assert "| 100 | 3,000 | 0.0333 |" in capsys.readouterr().out


def test_each_deployment_is_ended_before_the_next_begins(tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 3
    assert ["dynamo up" in call for call in calls] == [False, True, True]
    assert not [call for call in calls if Path(f"/proc/{call.split()[0]}").exists()]


def test_resumed_run_starts_only_what_is_missing(tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    report = report_of(tmp_path)
    gone = report["sections"]["load"].pop(2)
    (tmp_path / "cluster.json").write_text(json.dumps(report))
    (tmp_path / "calls").unlink()
    assert run(tmp_path, "--resume") == 0
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert "--prefill=1 --decode=1" in call
    last = report_of(tmp_path)["sections"]["load"][-1]
    assert (last["deployment"], last["clients"]) == (gone["deployment"], gone["clients"])


def test_run_that_takes_too_long_ends_and_keeps_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--set", "seconds=0") == 2
    assert "error: cluster: 0 s are over\n\nhint: " in capsys.readouterr().err
    assert not report_of(tmp_path)["complete"]


def test_deployment_that_does_not_start_is_told_with_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, python=interpreter(tmp_path, fails=True)) == 2
    assert "one process did not start: broken\n\nhint: " in capsys.readouterr().err


def test_interpreter_without_dynamo_is_refused_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, python=tmp_path / "none") == 2
    assert f"{tmp_path / 'none'} does not start" in capsys.readouterr().err
    from tests.serving.dynamo.needed import IS_INSTALLED

    if not IS_INSTALLED:
        assert run(tmp_path, python=Path(sys.executable)) == 2
        error = capsys.readouterr().err
        assert "cannot run Dynamo's workers: the package 'ai-dynamo" in error
        assert "\n\nhint: `make -f tools/studies/Makefile cluster` sets it up" in error


def test_prompts_beyond_the_build_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--set", "prompt_tokens=600") == 2
    assert "prompts of 600 tokens do not fit a build for 512" in capsys.readouterr().err


def exchange(*arrivals: float, error: str | None = None, tokens: int = 3) -> Exchange:
    return Exchange(0.0, [(at, 1) for at in arrivals], error, counted=tokens)


def test_failed_requests_are_in_no_number_but_their_own() -> None:
    found = summed_up([exchange(1, 2, 4), exchange(3, error="gone")])
    assert (found["requests"], found["failed"], found["first_error"]) == (1, 1, "gone")
    assert found["tokens_per_second"] == 3 / 4
    assert found["ttft_seconds"]["median"] == 1 and found["pause_seconds"]["p99"] == 2
    none = summed_up([exchange(error="gone")])
    assert none["tokens_per_second"] == 0 and none["itl_seconds"] is None


def test_summary_takes_ratios_round_by_round() -> None:
    def load(deployment: str, turn: int, rate: float, seconds: float | None) -> dict[str, Any]:
        times = {"median": seconds, "p99": seconds} if seconds else None
        return {
            "deployment": deployment, "round": turn, "clients": 4, "threads": 1,
            "tokens_per_second": rate, "cores": 1.0, "requests": 2, "failed": 0,
            "ttft_seconds": times, "itl_seconds": times, "pause_seconds": times,
        }  # fmt: skip

    rows = [load("one process", turn, rate, 0.5) for turn, rate in enumerate((10, 20, 40))]
    rows += [load("1 + 1", turn, rate, None) for turn, rate in enumerate((20, 10, 40))]
    alone, apart = cluster.summary({"load": rows, "idle": []})
    assert (alone["tokens_per_second"], alone["x_one_process"]) == (20, 1)
    assert apart["x_one_process"] == 1.0 and apart["ttft_median"] is None
    assert apart["requests"] == 6 and apart["row_bytes"] is None
