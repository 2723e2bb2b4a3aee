"""The model beside it, answering once. All of it is in the package."""

from snapexport.serving.triton.backend.unary import UnaryModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
