"""A snapexport build as a model of Triton's Python backend. All of it is in the package."""

from snapexport.serving.triton.backend.model import Model as TritonPythonModel

__all__ = ["TritonPythonModel"]
