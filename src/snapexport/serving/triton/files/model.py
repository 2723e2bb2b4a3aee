"""Shows Triton's Python backend the streaming model, whose code is in the package snapexport."""

from snapexport.serving.triton.backend.model import Model as TritonPythonModel

__all__ = ["TritonPythonModel"]
