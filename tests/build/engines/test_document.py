"""Commands of docs/how-to/tensorrt.md parse in their programs."""

import re
import subprocess
import sys
from pathlib import Path

from snapexport.cli.app import parser

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "tensorrt.md"


def commands(program: str) -> list[str]:
    text = DOCUMENT.read_text().replace("\\\n", " ")
    lines = [line.partition("#")[0] for line in text.splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


def test_snapexport_commands_of_the_tensorrt_guide_parse() -> None:
    ours = commands("snapexport")
    assert sum(" engine " in line for line in ours) == 5
    for line in ours:
        parser().parse_args(line.split()[1:])


def test_polygraphy_flags_of_the_tensorrt_guide_exist() -> None:
    (line,) = commands("polygraphy")
    program = Path(sys.executable).with_name("polygraphy")
    known = subprocess.run([program, "convert", "--help"], capture_output=True, text=True).stdout
    flags = re.findall("--[a-z-]+", line)
    assert len(flags) == 6
    assert [flag for flag in flags if f"{flag} " not in known] == []
