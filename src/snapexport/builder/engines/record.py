"""Puts a finished engine into its folder and into the manifest.

The manifest names only complete engines at any time, and all engines of one entry were built by the
same TensorRT with the same options. A kill loses only the engine in work.
"""

from pathlib import Path

from snapexport.builder.engines.folder import EngineFolder
from snapexport.contract.engines import EngineEntry, EngineFile, GraphEngine
from snapexport.contract.manifest import GraphName, Manifest
from snapexport.errors import UserError
from snapexport.files.whole import copy_whole, finish, sha256_of


def plugin_file(library: Path, folder: EngineFolder) -> EngineFile:
    """The manifest's record of the plugin library's copy beside the engines."""
    place = folder.in_build(folder.path / library.name)
    return EngineFile(file=place, size=library.stat().st_size, sha256=sha256_of(library))


def left_to_build(
    folder: EngineFolder, facts: EngineEntry, graphs: tuple[GraphName, ...]
) -> tuple[GraphName, ...]:
    """The graphs without an engine. Raises UserError if none is left, or if options differ."""
    former = Manifest.read(folder.directory).engines.get(folder.name)
    if former is None:
        return graphs
    if differences := _differences(former, facts):
        raise UserError(
            f"{folder.path} holds engines with other options: {', '.join(differences)}",
            "pass --overwrite to replace all of them",
        )
    left = tuple(name for name in graphs if name not in former.graphs)
    if not left:
        raise UserError(
            f"{folder.path} has every engine already", "pass --overwrite to build them again"
        )
    return left


def record(
    folder: EngineFolder,
    facts: EngineEntry,
    library: Path | None,
    graph: GraphName,
    engine: GraphEngine,
) -> None:
    """Put a finished engine into its folder and the manifest. facts: the entry without engines."""
    engines = _make_way(folder, facts, graph)
    if facts.plugins and library:
        copy_whole(library, folder.directory / facts.plugins.file)
    finish(folder.engine(graph))
    _write(folder, facts.model_copy(update={"graphs": engines | {graph: engine}}))


def _make_way(
    folder: EngineFolder, facts: EngineEntry, graph: GraphName
) -> dict[GraphName, GraphEngine]:
    """Remove the engines that the new one replaces, from the manifest first. Returns the rest."""
    former = Manifest.read(folder.directory).engines.get(folder.name)
    if former is None:
        return {}
    kept = former.graphs if _facts(former) == facts else {}
    kept = {name: engine for name, engine in kept.items() if name != graph}
    if kept != former.graphs:
        _write(folder, facts.model_copy(update={"graphs": kept}) if kept else None)
    replaced = [engine.file for name, engine in former.graphs.items() if name not in {graph, *kept}]
    if former.plugins and former.plugins.file != (facts.plugins and facts.plugins.file):
        replaced.append(former.plugins.file)
    for file in replaced:
        (folder.directory / file).unlink(missing_ok=True)
    return kept


def _facts(entry: EngineEntry) -> EngineEntry:
    return entry.model_copy(update={"graphs": {}})


def _differences(former: EngineEntry, facts: EngineEntry) -> list[str]:
    """Options of the existing engines that differ from the wanted ones, as text."""
    fields = [name for name in type(facts).model_fields if name != "graphs"]
    pairs = [(name, getattr(former, name), getattr(facts, name)) for name in fields]
    return [f"{name} {_shown(a)}, not {_shown(b)}" for name, a, b in pairs if a != b]


def _shown(fact: object) -> str:
    return f"{fact.file} ({fact.sha256[:12]})" if isinstance(fact, EngineFile) else str(fact)


def _write(folder: EngineFolder, entry: EngineEntry | None) -> None:
    manifest = Manifest.read(folder.directory)
    engines = {name: other for name, other in manifest.engines.items() if name != folder.name}
    engines |= {folder.name: entry} if entry else {}
    manifest.model_copy(update={"engines": engines}).write(folder.directory)
