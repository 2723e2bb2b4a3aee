"""TensorRT engines of a build that was made for TensorRT.

    graph -> network (parsed) -> engine (built on this GPU) -> loaded once -> the build's manifest

Importing this package loads no TensorRT: modules that need it are named `tensorrt_*`.
"""

from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError, first_line, needs_extra
from snapexport.contract.targets import capabilities
from snapexport.engines.options import EngineOptions
from snapexport.engines.progress import Progress, Silent

__all__ = ["EngineOptions", "Progress", "build_engines", "require_target"]


def build_engines(build: Build, options: EngineOptions, progress: Progress | None = None) -> str:
    """Build engines for the present GPU and record them; their name in the manifest's `engines`.

    What was finished stays, also where a later graph fails. Raises UserError.
    """
    require_target(build)
    with needs_extra("tensorrt"):
        try:
            from snapexport.engines.tensorrt_build import build_all
        except ModuleNotFoundError:
            raise
        except ImportError as error:
            raise UserError(
                f"TensorRT does not load: {first_line(error)}",
                "its bindings are installed without its libraries, or with those of another "
                "version: pip install 'snapexport[tensorrt]'",
            ) from error
    return build_all(build, options, progress or Silent())


def require_target(build: Build) -> None:
    """Refuse graphs that TensorRT's parser does not take."""
    if not capabilities(build.manifest.target).compiled:
        raise UserError(
            f"{build.directory} was built for {build.manifest.target}, not for TensorRT",
            "build it again with --target tensorrt",
        )
