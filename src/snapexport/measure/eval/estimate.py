"""Estimates the time and the memory of an evaluation before it starts.

A chunk and a decode step are timed on this machine; the rest is counted.
"""

import math
from contextlib import closing

from snapexport.contract import names
from snapexport.contract.build_directory import graph_specs
from snapexport.contract.manifest import Manifest
from snapexport.contract.memory import planned_bytes, weights_bytes
from snapexport.contract.pieces import Piece
from snapexport.measure.bench.plan import Estimate, chunk_seconds, step_seconds
from snapexport.measure.bench.turns import seconds_of
from snapexport.measure.eval.grid import Grid
from snapexport.measure.eval.loaded_systems import OpenGraphs
from snapexport.measure.eval.systems import System
from snapexport.methods import table


def estimate(grid: Grid) -> Estimate:
    """Time two chunks and a few decode steps of the build. Scratch memory is not counted.

    Raises UserError.
    """
    manifest, systems = grid.build.manifest, len(grid.systems)
    with closing(OpenGraphs(grid.options.running)) as graphs:
        executor = graphs.executor(grid.build)
        chunk_seconds(executor, 1)  # the first run reads the weights from the disk
        chunks = {n: chunk_seconds(executor, n) for n in grid.requests.lengths}
        opened = seconds_of(lambda: step_seconds(executor, 1))
        one, step = (step_seconds(executor, rows) for rows in (1, manifest.batch))
        decodes, prefills = (graphs.most_held(manifest, name) for name in ("decode", "prefill"))
    seconds = _of_tasks(grid, chunks, one)
    seconds += _of_continuations(grid, chunks, step) + _of_instructions(grid, chunks, step)
    if 0 < decodes < systems:
        seconds += opened * _turns(grid) * systems
    copies = min(decodes, systems) + min(prefills, _windows(grid))
    caches = sum(_cache_bytes(manifest, system) for system in grid.systems)
    return Estimate(seconds, (1 + copies) * weights_bytes(manifest) + caches)


def _turns(grid: Grid) -> int:
    """The number of times that every cache decodes in turn."""
    requests, batch = grid.requests, grid.build.manifest.batch
    groups = (math.ceil(len(some) / batch) for some in (requests.prompts, requests.instructions))
    return len(requests.cells()) + sum(groups)


def _of_tasks(grid: Grid, chunks: dict[int, float], step: float) -> float:
    """Each prompt is prefilled once, and its end once more for each mode and further window.

    step: of one request, since systems answer one prompt after the other.
    """
    options, seconds = grid.options, 0.0
    again = len(options.modes) * _windows(grid) - 1
    for task in options.chosen_tasks:
        cells = [cell for cell in grid.requests.cells() if cell.task == task]
        sample = grid.requests.sample(cells[0])
        tokens = sample.max_tokens + len(sample.question_ids)
        for cell in cells:
            seconds += chunks[cell.length] * (_chunks(grid, cell.length) + again)
            seconds += step * tokens * len(grid.systems) * len(options.modes)
            continued = _continuation(grid, cell.length, chunks[cell.length], step)
            seconds += continued * len(options.modes)
    return seconds


def _of_continuations(grid: Grid, chunks: dict[int, float], step: float) -> float:
    """A passage's longer prompts go on from the shorter ones; batch slots decode together."""
    passages = len(grid.requests.prompts) // len(grid.requests.lengths)
    prefill, done = 0.0, 0
    for length in grid.requests.lengths:
        prefill += chunks[length] * (_chunks(grid, length - done) + _windows(grid) - 1)
        prefill += _continuation(grid, length, chunks[length], step)
        done = length
    groups = math.ceil(len(grid.requests.prompts) / grid.build.manifest.batch)
    return passages * prefill + groups * len(grid.systems) * grid.options.continuation * step


def _of_instructions(grid: Grid, chunks: dict[int, float], step: float) -> float:
    """An instruction after the first one runs the end of its text again, and itself."""
    options, lengths = grid.options, grid.requests.lengths
    again = len(options.instructions or ()) * (_windows(grid) + 1) - 2
    prefill = sum(chunks[length] * (_chunks(grid, length) + again) for length in lengths)
    groups = math.ceil(len(grid.requests.instructions) / grid.build.manifest.batch)
    asked = len(options.instructions or ())
    prefill += sum(_continuation(grid, length, chunks[length], step) * asked for length in lengths)
    passages = len({instruction.passage for instruction in grid.requests.instructions})
    return passages * prefill + groups * len(grid.systems) * options.max_tokens * step


def _windows(grid: Grid) -> int:
    """Prefill graphs that differ in their outputs: by the window, or without one."""
    return len({system.geometry.vote.L_obs if system.votes else 0 for system in grid.systems})


def _continuation(grid: Grid, length: int, chunk: float, step: float) -> float:
    """Seconds for one prompt in all systems, beyond the chunks that they share.

    Each piece of a method's further work runs a chunk, and may decode before. Blocks are not shared
    with another system.
    """
    again, steps = 0, 0
    for system in grid.systems:
        pieces = _further(grid, system, length)
        again += _blocks(grid, system, length) if system.in_blocks else len(pieces)
        steps += sum(piece.decode_steps for piece in pieces)
    return again * chunk + steps * step


def _further(grid: Grid, system: System, length: int) -> list[Piece]:
    """The pieces of work that follow a prompt's chunks."""
    manifest = grid.build.manifest
    methods = table.methods_on(system.geometry, manifest.graph_options)
    works = (method.further(system.geometry) for method in methods)
    chunk = manifest.prefill_chunk
    return [piece for work in works if work for piece in work.pieces(length, chunk)]


def _blocks(grid: Grid, system: System, tokens: int) -> int:
    chunk = grid.build.manifest.prefill_chunk
    return math.ceil(tokens / (chunk - system.geometry.block_voters(chunk)))


def _chunks(grid: Grid, tokens: int) -> int:
    return math.ceil(tokens / grid.build.manifest.prefill_chunk)


def _cache_bytes(manifest: Manifest, system: System) -> int:
    """Bytes of decode's caches in a build of the system's geometry."""
    made = manifest.model_copy(update={"geometry": system.geometry, "graphs": {}})
    inputs = next(given for name, given, _ in graph_specs(made) if name == "decode")
    return planned_bytes(spec for name, spec in inputs.items() if names.is_past(name))
