"""Flags of Polygraphy in docs/how-to/tensorrt.md exist."""

import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "tensorrt.md"


def test_polygraphy_flags_of_the_tensorrt_guide_exist() -> None:
    text = DOCUMENT.read_text().replace("\\\n", " ")
    (line,) = (one for one in text.splitlines() if one.startswith("polygraphy "))
    program = Path(sys.executable).with_name("polygraphy")
    known = subprocess.run([program, "convert", "--help"], capture_output=True, text=True).stdout
    flags = re.findall("--[a-z-]+", line)
    assert len(flags) == 6
    assert [flag for flag in flags if f"{flag} " not in known] == []
