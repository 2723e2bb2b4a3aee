"""Time and peak memory of exporting a checkpoint of Llama-3.1's shape at 131,072 tokens.

Runs the command that the README shows, on sparse checkpoints of 8 and 70 billion parameters, and
prints a JSON line for each.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparse_checkpoint import SHAPES, write_sparse_checkpoint

FLAGS = "--L-max 131072 --kv-budget 8192 --dtype bf16 --target tensorrt".split()


def main() -> None:
    """Measure each shape that is asked for, the smaller first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=[*SHAPES], help="(all)")
    asked = parser.parse_args().shapes
    for shape in (shape for shape in SHAPES if shape in asked):
        print(json.dumps(measured(shape)), flush=True)


def measured(shape: str) -> dict[str, object]:
    """A build in a process of its own, and what it took.

    peak_bytes is that of the largest child so far: the smaller shape goes first.
    """
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint, out = Path(scratch) / "checkpoint", Path(scratch) / "llama.build"
        weights = write_sparse_checkpoint(checkpoint, shape)
        command = ["snapexport", "build", "--model", str(checkpoint), *FLAGS, "--out", str(out)]
        started = time.perf_counter()
        subprocess.run(
            [Path(sys.executable).with_name(command[0]), *command[1:]],
            check=True,
            stdout=sys.stderr,
        )
        seconds = time.perf_counter() - started
        files = list((out / "weights").iterdir())
        return {
            "command": "snapexport build " + " ".join(FLAGS),
            "shape": shape,
            "seconds": round(seconds, 1),
            "peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            "weights_bytes": weights,
            "weight_files": len(files),
            "weights_on_disk_bytes": sum(512 * file.stat().st_blocks for file in files),
            "graphs_bytes": sum(path.stat().st_size for path in out.glob("*.onnx")),
        }


if __name__ == "__main__":
    main()
