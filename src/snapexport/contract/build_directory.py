"""A build on disk: its manifest, and the files that the manifest vouches for."""

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
from snapexport.contract.safetensors import header_sha256


@dataclass(frozen=True)
class Build:
    """A whole and unchanged build. Made by `open` alone."""

    directory: Path
    manifest: Manifest

    @classmethod
    def open(cls, directory: Path | str) -> "Build":
        """Check manifest, graphs (by hash) and weights (by size and header). Raises UserError.

        Weights are many gigabytes: reading all of them is left to `verify_weights`.
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

    def verify_weights(self) -> list[str]:
        """Read every weight file whose hash is known and compare. Raises UserError.

        Returns the files whose hash was not recorded, and which were therefore not read.
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
            raise UserError(f"{path} is a symbolic link", "put the file itself in its place")
        if not path.is_file():
            raise UserError(f"{path} is missing", REBUILD)
        return path
