"""Mistakes are told before torch, transformers or ONNX Runtime is loaded, which takes seconds."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from snapexport.contract.build_directory import Build

PROGRAM = """if True:
    import json, sys
    from snapexport.cli.app import main
    for argv in json.load(sys.stdin):
        status = main(argv)
        heavy = {"torch", "transformers", "onnx", "onnxruntime"} & set(sys.modules)
        assert (status, heavy) == (2, set()), (argv, status, heavy)
"""


def test_mistakes_are_refused_before_anything_heavy_is_loaded(
    checkpoint: Path, tiny_build: Build, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(checkpoint, tmp_path / "broken"))
    (broken / "config.json").write_text("{")
    cut = Path(shutil.copytree(checkpoint, tmp_path / "cut")) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    (tmp_path / "text").write_text("no build")
    (tmp_path / "part.gguf").write_bytes(b"GGUF")
    build, text = str(tiny_build.directory), str(tmp_path / "text")
    new = ["--out", str(tmp_path / "new")]
    of_model = ["build", "--model", str(checkpoint), "--L-max"]
    plan = ["plan", "--memory", "8GiB", "--L-max"]
    mistakes = [
        [*of_model, "64", "--out", build],
        [*of_model, "9999", *new],
        [*of_model, "64", "--prefill-chunk", "65", *new],
        [*of_model, "64", "--kv-budget", "4", *new],
        [*of_model, "64", "--out", f"{text}/new"],
        [*of_model, "many", *new],
        *(["build", "--L-max", "64", *new, "--model", str(tmp_path / name)]
          for name in ("missing", "broken", "cut", "part.gguf", "missing.gguf")),
        [*plan, "9999", "--model", str(checkpoint)],
        [*plan, "64", "--model", str(tmp_path / "missing")],
        [*plan, "64", "--model", str(checkpoint), "--kv-budget", "65"],
        *([name, text] for name in "chat inspect diff lint engine serve eval bench".split()),
        ["triton", text, *new],
        ["generate", text, "--prompt", "x"],
        ["ask", text, text, "Who has the key?"],
        ["ask", build, str(tmp_path / "missing"), "Who has the key?"],
        ["generate", build, "--prompt", "x", "--temperature", "-1"],
        ["eval", build, "--lengths", "9999"],
        ["eval", build, "--out", text],
        ["eval", build, "--documents", str(tmp_path / "missing")],
        ["calibrate", build, "--documents", str(tmp_path / "missing"), *new],
        ["calibrate", build, "--documents", text, "--out", str(tmp_path)],
        ["demo", "--out", text],
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(mistakes), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: ") == len(mistakes)
    assert not (tmp_path / "new").exists()
