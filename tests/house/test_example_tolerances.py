"""The example that compares builds holds Polygraphy to the tolerances that it names."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

from snapexport.contract.build_directory import Build

EXAMPLE = Path(__file__).parents[2] / "examples" / "polygraphy_diff.py"
INPUTS = ("input_ids", "prompt_length", "position_ids")


def build_of(directory: Path, off: float) -> SimpleNamespace:
    """As an opened build: its decode graph outputs the token's number, and `off` more."""
    inputs = ", ".join(f"int64[1] {name}" for name in INPUTS)
    text = f"""<ir_version: 10, opset_import: ["": 20]>
        decode ({inputs}) => (float[1] logits) <float[1] off = {{{off}}}> {{
            token = Cast <to = 1> (input_ids)
            logits = Add (token, off)
        }}"""
    onnx.save(onnx.parser.parse_model(text), directory / f"{off}.onnx")
    specs = [SimpleNamespace(name=name, shape=(1,), dtype="int64") for name in INPUTS]
    graphs = {"decode": SimpleNamespace(inputs=specs)}
    return SimpleNamespace(
        manifest=SimpleNamespace(graphs=graphs),
        directory=directory / str(off),
        graph=lambda kind: directory / f"{off}.onnx",
    )


@pytest.mark.parametrize(("off", "status"), [(0.002, 0), (0.02, 1)])
def test_polygraphy_diff_calls_graphs_equal_within_its_tolerances_only(
    off: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a logit of 5 a thousandth and .001 are .006; Polygraphy's own default is 1e-5."""
    monkeypatch.setattr(Build, "open", lambda path: build_of(tmp_path, float(path.name)))
    monkeypatch.setattr(sys, "argv", ["polygraphy_diff.py", "0.0", str(off)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE))
    assert ended.value.code == status
