"""A peer's process: its answers, and the errors of one that cannot start."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tools.studies.speed.peers import PLUGINS, snapexport_build
from tools.studies.speed.peers.process import PeerError, Variant, Worker


def variant(options: dict[str, Any], python: Path | None = Path(sys.executable)) -> Variant:
    return Variant("ours", 32, python, snapexport_build.__file__, options, contexts=(16,))


def test_peer_process_answers_for_a_snapexport_build(tiny_build: Build) -> None:
    worker = Worker(variant({"build": str(tiny_build.directory), "threads": 1}))
    try:
        assert worker.versions.keys() >= {"snapexport", "onnxruntime"}
        assert worker.ask("first_token", tokens=list(range(3, 40))) > 0
        worker.ask("fill", context=16)
        assert worker.ask("step") > 0
        with pytest.raises(PeerError, match="AttributeError"):
            worker.ask("dance")
        assert worker.ask("step") > 0
    finally:
        worker.close()
    with pytest.raises(PeerError, match="ended with status -9"):
        worker.ask("step")


PLUGIN = """
PACKAGES = ()
class Peer:
    idled = 0
    def idle(self):
        self.idled += 1
    def step(self):
        return self.idled
def make():
    return Peer()
"""


def test_what_a_peer_does_when_idle_follows_each_answer(tmp_path: Path) -> None:
    (plugin := tmp_path / "plugin.py").write_text(PLUGIN)
    worker = Worker(Variant("peer", 32, Path(sys.executable), str(plugin), {}, contexts=()))
    try:
        assert [worker._told("step", {})["gave"] for _ in range(3)] == [0, 1, 2]
    finally:
        worker.close()


def test_peer_answers_with_the_likeliest_tokens(tiny_build: Build) -> None:
    prompt = list(range(3, 40))
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    with closing(LLM(tiny_build.directory)) as llm:
        (expected,) = llm.generate([prompt], params)
    worker = Worker(variant({"build": str(tiny_build.directory), "threads": 1}))
    try:
        assert worker.answer(prompt, 6) == worker.answer(prompt, 6) == list(expected.token_ids)
        took = worker.request(prompt, 6)
        assert took["tokens"] == list(expected.token_ids)
        assert 0 < took["first"] < took["last"] and 0 < took["first_cpu"] < took["last_cpu"]
        assert took["peak_bytes"] > 1 << 20 and took["pss_bytes"] > 1 << 20
    finally:
        worker.close()


def test_peer_that_cannot_be_loaded_reports_its_error(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"UserError: .*is not a build directory"):
        Worker(variant({"build": str(tmp_path), "threads": 1}))
    with pytest.raises(PeerError, match="no interpreter"):
        Worker(variant({}, python=None))
    with pytest.raises(PeerError, match="does not start: No such file"):
        Worker(variant({}, python=tmp_path / "python"))


def test_peer_plugins_import_nothing_of_snapexport_at_load() -> None:
    for plugin in PLUGINS:
        source = Path(str(plugin.__file__)).read_text()
        plain = [line for line in source.splitlines() if line.startswith(("from ", "import "))]
        assert not [line for line in plain if "snapexport" in line], plugin.__file__
        assert callable(plugin.make) and callable(plugin.variants) and plugin.PACKAGES
