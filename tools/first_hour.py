"""Writes docs/get-started/first-hour.md: the commands of a first hour with one's own checkpoint.

usage: python tools/first_hour.py MODEL.gguf DOCUMENT.txt

Runs each command on a terminal of 120 columns in a new folder, and writes what it prints. Takes
about eight minutes with SmolLM2-135M on two cores, `eval` and `bench` most of it. Judges nothing.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import pyte

PAGE = Path(__file__).parent.parent / "docs" / "get-started" / "first-hour.md"

COLUMNS, ROWS = 120, 1000
WIDTH = 120
"""Of the page's sentences."""

MOST, FIRST, LAST = 36, 16, 8
"""An output of more than MOST lines is shown by its first and last ones."""

HEAD = """# A first hour with your own checkpoint

From a GGUF file to a server, with what each command prints on a terminal. The model is
SmolLM2-135M-Instruct, the machine has two cores and no GPU. `tools/first_hour.py` ran the commands
and wrote this page. Lines of progress are shown as they end, and long outputs without their middle.
[Install](install.md) snapexport with `[cpu,build,eval,serve]` first.

`smollm2.gguf` is SmolLM2-135M-Instruct in Q4_1; another GGUF file or checkpoint will do as well. In
a clone of the repository `make real-model` fetches it. `document.txt` is a long text, here the
Debian FAQ.
"""


@dataclass(frozen=True)
class Step:
    """A command, and the sentences before it."""

    title: str
    words: str
    command: str


STEPS = (
    Step(
        "What fits",
        "`plan` reads the file's header alone. `peak` is what the running build takes.",
        "snapexport plan --model smollm2.gguf --L-max 8192 --memory 2GiB",
    ),
    Step(
        "Build",
        "Prompts of up to 8,192 tokens, 2,048 cache slots for each layer and KV head (a quarter, "
        "the default), and four requests at once. `--baseline` adds the full cache, for `eval`.",
        "time snapexport build --model smollm2.gguf --L-max 8192 --batch 4 --baseline "
        "--out smollm2.build",
    ),
    Step(
        "Ask",
        "The build has the checkpoint's chat template, and the answer stops at its end token.",
        'snapexport generate smollm2.build --prompt "What is the capital of France?"',
    ),
    Step(
        "Ask about a long text",
        "The beginning of the Debian FAQ, longer than the cache, with a question at its end.",
        "(head -c 20000 document.txt; echo; "
        'echo "Summarize this text in one paragraph.") > ask.txt\n'
        "snapexport generate smollm2.build --prompt-file ask.txt --max-tokens 60",
    ),
    Step(
        "Chat",
        "On a terminal `snapexport chat smollm2.build` waits for what you type. Here lines come "
        "from a pipe.",
        "printf 'What is 2 + 2?\\nAnd twice that?\\n' | snapexport chat smollm2.build",
    ),
    Step(
        "See what was kept",
        "The page shades each token by how many heads kept it.",
        "snapexport inspect smollm2.build --prompt-file ask.txt --html kept.html",
    ),
    Step(
        "What compression costs",
        "Tasks of the default length, with the full cache and two others. An estimate of time and "
        "memory comes first.",
        "time snapexport eval smollm2.build",
    ),
    Step("How fast it is", "", "time snapexport bench smollm2.build"),
    Step(
        "Serve",
        "Any OpenAI client works. The server ends with Ctrl-C; it finishes what runs.",
        "snapexport serve smollm2.build --port 8123 &\nsleep 10\n"
        "curl -s localhost:8123/v1/chat/completions -H 'Content-Type: application/json' -d "
        '\'{"model": "smollm2", "max_tokens": 32, "temperature": 0, '
        '"messages": [{"role": "user", "content": "Name three primary colours."}]}\'; echo\n'
        "kill -INT $!; wait",
    ),
    Step(
        "A wrong argument",
        "Wrong input ends with exit status 2, and with a hint.",
        "snapexport build --model smollm2.gguf --L-max 16384 --out other.build",
    ),
)


def main() -> None:
    """Run all steps, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("document", type=Path, metavar="DOCUMENT.txt")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        (folder / "smollm2.gguf").symlink_to(arguments.model.resolve(strict=True))
        (folder / "document.txt").symlink_to(arguments.document.resolve(strict=True))
        page = [HEAD, *(section(step, folder) for step in progress(STEPS))]
    arguments.out.write_text("\n".join(page))


def progress(steps: tuple[Step, ...]) -> Iterator[Step]:
    """The steps, each one told as it begins."""
    for step in steps:
        print(step.title, file=sys.stderr)
        yield step


def section(step: Step, folder: Path) -> str:
    """Heading, sentences, command and output, in Markdown."""
    shown = f"$ {step.command}\n".replace("\n", "\n$ ").removesuffix("$ ")
    words = f"{fill(step.words, WIDTH)}\n\n" if step.words else ""
    return f"## {step.title}\n\n{words}```\n{shown}{printed(step.command, folder)}\n```\n"


def printed(command: str, folder: Path) -> str:
    """What stands on the terminal when the command has ended."""
    inside = f"stty cols {COLUMNS}; bash -c {shlex.quote(command)}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["script", "--quiet", "--command", inside, "/dev/null"],
        cwd=folder,
        env={**os.environ, "PATH": path, "TIMEFORMAT": "%R s, %U s of CPU time"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    screen = pyte.Screen(COLUMNS, ROWS)
    pyte.ByteStream(screen).feed(ran.stdout.replace(f"{folder}/".encode(), b""))
    lines = "\n".join(line.rstrip() for line in screen.display).strip("\n").split("\n")
    return "\n".join(lines if len(lines) <= MOST else shortened(lines))


def shortened(lines: Sequence[str]) -> list[str]:
    """The first and last lines, and how many were left out."""
    return [*lines[:FIRST], f"[... {len(lines) - FIRST - LAST} lines]", *lines[-LAST:]]


if __name__ == "__main__":
    main()
