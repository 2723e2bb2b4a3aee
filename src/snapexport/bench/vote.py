"""The part of compress.onnx that chooses what to keep, cut out and run by itself.

The whole compress step is timed through the executor. What it takes beyond the vote goes into
moving sinks, ring and kept positions to their cache slots. The vote's inputs are random numbers:
the work depends on the prompt's length, not on values.
"""

import numpy as np

from snapexport.bench.sessions import Bound, open_session, zeros
from snapexport.contract import names
from snapexport.contract.build_directory import Build


class Vote:
    """A session of the vote alone, under the runtime's options."""

    def __init__(self, build: Build, model: bytes, threads: int | None) -> None:
        entry = build.manifest.graphs["compress"]
        rng = np.random.default_rng(0)
        inputs = zeros([spec for spec in entry.inputs if spec.name == names.PROMPT_LENGTH])
        for spec in entry.inputs:
            if spec.name not in inputs:
                drawn = rng.standard_normal(spec.shape, np.float32)
                inputs[spec.name] = drawn.astype(spec.dtype, copy=False)
        kept = [spec for spec in entry.outputs if not names.is_present(spec.name)]
        self.bound = Bound(open_session(model, threads), inputs, zeros(kept))

    @classmethod
    def of(cls, build: Build, threads: int | None) -> "Vote | None":
        """None where nothing votes, or the onnx package is missing."""
        outputs = [spec.name for spec in build.manifest.graphs["compress"].outputs]
        kept = [name for name in outputs if not names.is_present(name)]
        model = _cut(str(build.graph("compress")), kept) if kept else None
        return cls(build, model, threads) if model else None

    def run(self, prompt_length: int) -> None:
        """Once, for a prompt of that length."""
        self.bound.inputs[names.PROMPT_LENGTH][:] = prompt_length
        self.bound.run()


def _cut(path: str, outputs: list[str]) -> bytes | None:
    """The part of a graph that makes these outputs; None without the onnx package."""
    try:
        import onnx
        from onnx.utils import Extractor
    except ModuleNotFoundError:
        return None
    model = onnx.load(path)
    inputs = [value.name for value in model.graph.input]
    part: bytes = Extractor(model).extract_model(inputs, outputs).SerializeToString()
    return part
