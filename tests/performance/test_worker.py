"""A peer's process: what it answers, and what is told when it can't."""

import sys
from pathlib import Path
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from tools.performance.worker import Peer, PeerError, Worker


def peer(options: dict[str, Any], python: Path | None = Path(sys.executable)) -> Peer:
    return Peer("ours", 32, python, "ours", options, contexts=(16,))


def test_a_build_of_ours_answers_from_a_process_of_its_own(tiny_build: Build) -> None:
    worker = Worker(peer({"build": str(tiny_build.directory), "threads": 1}))
    try:
        assert worker.versions.keys() == {"snapexport", "onnxruntime"}
        assert worker.ask("first_token", tokens=list(range(3, 40))) > 0
        worker.ask("fill", context=16)
        assert 0 < worker.ask("step") < 60
        with pytest.raises(PeerError, match="AttributeError"):
            worker.ask("dance")
        assert worker.ask("step") > 0
    finally:
        worker.close()
    with pytest.raises(PeerError, match="ended with status -9"):
        worker.ask("step")


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"UserError: .*is not a build directory"):
        Worker(peer({"build": str(tmp_path), "threads": 1}))
    with pytest.raises(PeerError, match="no interpreter"):
        Worker(peer({}, python=None))
    with pytest.raises(PeerError, match="does not start: No such file"):
        Worker(peer({}, python=tmp_path / "python"))
