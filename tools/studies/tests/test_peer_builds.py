"""Exports of other libraries: their command lines, what is measured of one, weights on the disk."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from snapexport.compare.documents import open_tokenizer
from snapexport.contract.engines import PackedGraphs
from snapexport.vault import CHECKPOINT
from tools.studies.speed.builds import Builds
from tools.studies.speed.experiments import peer_builds, request
from tools.studies.speed.peers import mobius_peer

SAVE = "import pathlib, sys; out = pathlib.Path(sys.argv[1]); out.mkdir(); "


def test_an_export_is_measured_and_its_files_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = SAVE + "(out / 'weights').write_bytes(bytes(1000))"
    own = bytearray(b"1") * (200 << 20)
    took = peer_builds._measured([sys.executable, "-c", program, str(out)], out)
    assert took["disk_bytes"] == 1000 and 1 << 20 < took["peak_bytes"] < len(own)
    assert took["cpu"] > 0 and took["seconds"] > 0 and not out.exists()


def test_a_failed_export_says_how_it_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    assert peer_builds._measured(command, tmp_path) == {"why": "it ended with status 3"}


def test_summary_has_the_least_of_the_rounds() -> None:
    row: dict[str, Any] = {"system": "a", "seconds": 2.0, "cpu": 1.0, "peak_bytes": 5}
    rows = [row | {"disk_bytes": 7}, row | {"disk_bytes": 7, "seconds": 1.0, "peak_bytes": 9}]
    (found,) = peer_builds.summary({"exports": rows})
    assert found == {"system": "a", "seconds": 1.0, "cpu": 1.0, "peak_bytes": 5, "disk_bytes": 7}


@pytest.mark.parametrize(
    ("source", "words"), [("a.gguf", ["build-gguf", "a.gguf"]), ("folder", ["build", "--config"])]
)
def test_mobius_reads_a_gguf_file_by_a_command_of_its_own(source: str, words: list[str]) -> None:
    line = mobius_peer.command(source, Path("out"), 512)
    assert line[4:6] == words and source in line
    assert line[line.index("--max-seq-len") + 1] == "512"


@pytest.mark.slow
def test_packed_builds_share_their_graphs_and_have_weights_of_their_own(tmp_path: Path) -> None:
    builds = Builds(CHECKPOINT, tmp_path, chunk=64)
    made, packed = builds.get(256, 64), builds.packed(256, 64)
    assert PackedGraphs.of(made.directory) is None
    record = PackedGraphs.of(packed.directory)
    assert record and set(record.graphs) == set(packed.manifest.graphs) - {"compress"}
    assert packed.graph("decode").samefile(made.graph("decode"))


def test_questions_are_judged_by_the_number_that_they_ask_for(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The road bends around the mill and over a hill.\n" * 40)
    questions = request._Questions(CHECKPOINT, str(tmp_path))
    prompt, other = questions.get(300, 0), questions.get(300, 1)
    assert 250 < len(prompt) <= 300 and prompt != other == questions.get(300, 1)
    tokenizer = open_tokenizer(CHECKPOINT)
    (number,) = set(re.findall(r"\b\d{7}\b", tokenizer.decode(prompt)))
    right, wrong = (tokenizer.encode(text).ids for text in (f" {number}.", " 7."))
    assert questions.judged(300, 0, right)["found"]
    assert questions.judged(300, 0, wrong) == {"found": False, "answer": tokenizer.decode(wrong)}
    assert not questions.judged(300, 1, right)["found"]
