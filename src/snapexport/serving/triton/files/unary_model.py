"""Shows Triton's Python backend the unary model, whose code is in the package snapexport."""

from snapexport.serving.triton.backend.unary import UnaryModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
