"""The picture of what was kept reads without colour, and the commands that show it tell JSON."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from snapexport.cli.app import main
from snapexport.cli.kept_view import MOST_ROWS, kept_picture, picture_width
from snapexport.contract.build_directory import Build
from snapexport.contract.records import GeometryRecord
from snapexport.vault import CHECKPOINT
from tests.builds import build

LENGTH = 64
GEOMETRY = GeometryRecord(
    "snapstream", 64, num_layers=1, L_sink=4, L_recent=12, K=3, L_obs=4
).geometry()
ELIGIBLE = range(4, 52)


def rows(kept: NDArray[np.int64], length: int = LENGTH, width: int = 60) -> list[str]:
    """Without names, scale and legend."""
    lines = [line.plain for line in kept_picture(GEOMETRY, [kept], length, width)]
    return [line.removeprefix(f"layer  0 head {head:2d} ") for head, line in enumerate(lines[1:-1])]


@pytest.mark.parametrize("position", ELIGIBLE)
def test_a_kept_position_darkens_only_its_column(position: int) -> None:
    (row,) = rows(np.array([[position]]))
    columns = [" "] * len(ELIGIBLE)
    columns[position - 4] = "█"
    assert row == "S" + "".join(columns) + "|" + "=" * 12


@pytest.mark.parametrize("position", ELIGIBLE)
def test_a_column_is_as_dark_as_its_share_of_kept_positions(position: int) -> None:
    (row,) = rows(np.array([[position]]), width=20)  # 16 columns of 3 positions
    assert {i: mark for i, mark in enumerate(row[1:17]) if mark != " "} == {
        (position - 4) // 3: "░"
    }
    (full,) = rows(np.array([[4, 5, 6]]), width=20)
    assert full == "S█" + " " * 15 + "|===="


def test_the_picture_ignores_unused_places() -> None:
    assert rows(np.array([[-1, -1, -1]])) == ["S" + " " * 48 + "|" + "=" * 12]


@pytest.mark.parametrize(
    ("length", "row"),
    [
        (1, "S|"),
        (4, "S|"),
        (5, "S|="),
        (16, "S|" + "=" * 12),
        (19, "S|" + "=" * 15),
        (20, "S    |" + "=" * 12),
    ],
)
def test_the_picture_of_a_short_prompt_has_sinks_then_ring(length: int, row: str) -> None:
    assert rows(np.array([[-1]]), length) == [row]


def test_the_picture_of_a_long_prompt_still_shows_sinks_and_ring() -> None:
    geometry = GeometryRecord("snapstream", 10**5, 1, L_sink=4, L_recent=32, K=1).geometry()
    lines = kept_picture(geometry, [np.array([[-1]])], 10**5, picture_width(120))
    assert lines[1].plain == "layer  0 head  0 S" + " " * 63 + "|="
    assert {lines[1].plain[span.start : span.end]: span.style for span in lines[1].spans} == {
        "S": "cyan",
        " ": "yellow",
        "=": "green",
    }


@pytest.mark.parametrize("terminal", [40, 80, 82, 83, 200])
def test_a_row_fits_into_the_terminal(terminal: int) -> None:
    geometry = GeometryRecord("snapstream", 10**5, 1, L_sink=4, L_recent=32, K=1).geometry()
    lines = kept_picture(geometry, [np.array([[-1]])], 10**5, picture_width(terminal))
    assert len(lines[1].plain) == min(terminal, 83)


def test_the_picture_counts_the_heads_that_it_hides() -> None:
    picture = rows(np.full((MOST_ROWS + 5, 3), -1))
    assert len(picture) == MOST_ROWS + 1
    assert picture[-1].startswith("(and 5 more heads")
    assert len(rows(np.full((MOST_ROWS, 3), -1))) == MOST_ROWS


def test_inspect_json_is_one_line(capsys: pytest.CaptureFixture[str], tiny_build: Build) -> None:
    assert main(["inspect", str(tiny_build.directory), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["batch"] == tiny_build.manifest.batch


def test_demo_json_is_one_line_and_an_existing_out_is_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["demo", "--json", "--more", "0", "--out", str(tmp_path / "vault.build")]
    assert main(flags) == 0
    (line,) = capsys.readouterr().out.splitlines()
    full, ours = json.loads(line)
    assert full["cache_bytes"] > 8 * ours["cache_bytes"]
    assert full["right"] == (full["text"].strip() == full["expected"].strip())
    assert main(flags) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.fixture(scope="module")
def vault_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("vault") / "vault.build"
    return build(CHECKPOINT, out, L_max=64, kv_budget=16, batch=1)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "generate"])
@pytest.mark.parametrize("wrapper", ['exec "$@" >&-', 'PYTHONIOENCODING=ascii exec "$@"'])
def test_closed_or_ascii_output_does_not_crash(
    vault_build: Build, command: str, wrapper: str
) -> None:
    prompt = "The old key of the vault lies – hidden – behind the door of the house by the sea."
    argv = [sys.executable, "-m", "snapexport", command, vault_build.directory, "--prompt", prompt]
    done = subprocess.run(["sh", "-c", wrapper, "sh", *argv], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"\n") == (command == "generate")  # what was kept
    if command == "inspect" and "ascii" in wrapper:
        assert "held: S sinks  ????? kept" in done.stdout.decode("ascii")
