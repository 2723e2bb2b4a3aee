"""Time and peak memory of exporting a Llama-3.1-8B-shaped checkpoint at 131,072 tokens.

Runs the command that the README shows, on a sparse checkpoint, and ends with one JSON line.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparse_checkpoint import write_sparse_checkpoint

FLAGS = "--L-max 131072 --kv-budget 8192 --dtype bf16 --target tensorrt".split()


def main() -> None:
    """Build in a process of its own, and look at what it took."""
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint, out = Path(scratch) / "llama-3.1-8b", Path(scratch) / "llama.build"
        weights = write_sparse_checkpoint(checkpoint)
        command = ["snapexport", "build", "--model", str(checkpoint), *FLAGS, "--out", str(out)]
        started = time.perf_counter()
        subprocess.run([Path(sys.executable).with_name(command[0]), *command[1:]], check=True)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        weight_file = out / "weights" / "model.safetensors"
        linked = weight_file.samefile(checkpoint / "model.safetensors")
        graphs = sum(path.stat().st_size for path in out.glob("*.onnx"))
    report = {
        "command": "snapexport build " + " ".join(FLAGS),
        "seconds": round(seconds, 1),
        "peak_bytes": peak,
        "weights_bytes": weights,
        "weights_are_the_same_file": linked,
        "graphs_bytes": graphs,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
