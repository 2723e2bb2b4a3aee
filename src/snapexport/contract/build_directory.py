"""Opens a build on disk, and checks its files against its manifest."""

from dataclasses import dataclass
from pathlib import Path

from snapexport.contract.errors import UserError
from snapexport.contract.files import sha256_of
from snapexport.contract.manifest import (
    BASELINE,
    REBUILD,
    GraphEntry,
    GraphName,
    Manifest,
    TraceName,
    WeightFile,
)
from snapexport.contract.safetensors import TensorSpan, header_sha256, read_header


@dataclass(frozen=True)
class Build:
    """A complete and unchanged build. Only `open` makes one."""

    directory: Path
    manifest: Manifest

    @classmethod
    def open(cls, directory: Path | str) -> "Build":
        """Check manifest, graphs (by hash) and weights (by size and header). Raises UserError.

        Weights may be many gigabytes; `verify_weights` hashes them.
        """
        build = cls(Path(directory), Manifest.read(Path(directory)))
        for entry in (*build.manifest.graphs.values(), *build.manifest.traces.values()):
            build._check_graph(entry)
        for weights in build.manifest.weights:
            build._check_weights(weights)
        return build

    def graph(self, name: GraphName) -> Path:
        """Path of a graph that this build has."""
        return self.directory / self.manifest.graphs[name].file

    def trace(self, name: TraceName) -> Path:
        """Path of a trace that this build has."""
        return self.directory / self.manifest.traces[name].file

    @property
    def has_baseline(self) -> bool:
        return f"{BASELINE}decode" in self.manifest.graphs

    def weight_spans(self) -> dict[str, TensorSpan]:
        """Where each weight lies, by its name. Raises UserError for an invalid file."""
        files = [self.directory / weights.file for weights in self.manifest.weights]
        return {name: span for file in files for name, span in read_header(file).items()}

    def verify_weights(self) -> list[str]:
        """Hash every weight file that has a recorded hash. Raises UserError for a difference.

        Returns the files without a recorded hash, which are not read.
        """
        for weights in self.manifest.weights:
            if weights.sha256 not in (None, sha256_of(self.directory / weights.file)):
                raise UserError(f"{weights.file} was changed after the build", REBUILD)
        return [weights.file for weights in self.manifest.weights if weights.sha256 is None]

    def _check_graph(self, entry: GraphEntry) -> None:
        path = self._existing(entry.file)
        if sha256_of(path) != entry.sha256:
            raise UserError(f"{path} was changed after the build", REBUILD)

    def _check_weights(self, weights: WeightFile) -> None:
        path = self._existing(weights.file)
        if path.stat().st_size != weights.size:
            raise UserError(
                f"{path} has {path.stat().st_size} bytes, the manifest says {weights.size}", REBUILD
            )
        if header_sha256(path) != weights.header_sha256:
            raise UserError(f"{path} was changed after the build", REBUILD)

    def _existing(self, file: str) -> Path:
        path = self.directory / file
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise UserError(f"the manifest names {file}, which is outside of the build", REBUILD)
        if path.is_symlink():
            raise UserError(f"{path} is a symbolic link", "replace the link by the file itself")
        if not path.is_file():
            raise UserError(f"{path} is missing", REBUILD)
        return path
