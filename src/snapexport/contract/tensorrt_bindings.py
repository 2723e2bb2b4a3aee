"""Loads the Python bindings of the library that compiles a build: TensorRT, or TensorRT for RTX.

Both have the same classes, so our code is written once, against `trt`. A process uses one of them:

    use(library)
    from snapexport.contract.tensorrt_bindings import trt
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from snapexport.contract.build_directory import Build
from snapexport.contract.targets import EngineLibrary, capabilities
from snapexport.errors import UserError, first_line, needs_extra

if TYPE_CHECKING:
    import tensorrt as trt

__all__ = ["library_of", "trt", "use", "version"]

_used: EngineLibrary | None = None


def library_of(build: Build) -> EngineLibrary:
    """The library that compiles and runs a build's graphs. Raises UserError where none does."""
    library = capabilities(build.manifest.target).library
    if library is None:
        raise UserError(
            f"{build.directory} was built for {build.manifest.target}, not for TensorRT",
            "build it again with --target tensorrt or tensorrt-rtx; --backend onnxruntime runs it "
            "as it is",
        )
    return library


def use(library: EngineLibrary) -> None:
    """Let `trt` be the bindings of `library`. Raises UserError if they do not load."""
    global _used
    if _used not in (None, library):
        raise UserError(
            f"this process uses {_used.title} already, and cannot load {library.title}",
            "open builds for TensorRT and for TensorRT for RTX in processes of their own",
        )
    with needs_extra(library.extra):
        try:
            import_module(library.module)
        except ModuleNotFoundError:
            raise
        except (ImportError, OSError) as error:  # the bindings are there, their library is not
            raise UserError(
                f"{library.title} does not load: {first_line(error)}",
                "its bindings are installed without its libraries, or with those of another "
                f"version: pip install 'snapexport[{library.extra}]'",
            ) from error
    _used = library


def version() -> str:
    """The library's version, such as 10.15.1.29."""
    return str(_bindings().__version__)


def __getattr__(name: str) -> Any:
    if name != "trt":
        raise AttributeError(name)
    return _bindings()


def _bindings() -> Any:
    assert _used is not None, "call use(library) first"
    return import_module(_used.module)
