"""Measures what a repeated prompt attends to.

For comparisons, by the graphs themselves, without trust in the runtime; for calibrations, by the
runtime on any backend.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np

from snapexport.builder.derive import derive
from snapexport.builder.graph_files import Traces
from snapexport.builder.options import BuildOptions
from snapexport.builder.staging import scratch
from snapexport.compare.loaders import Array, Feed
from snapexport.compare.method import MethodMeasure, Prefilled, Texts
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.exclusions import require_compatible
from snapexport.contract.graph_options import GraphOptions
from snapexport.methods.repeat.run import Repetition
from snapexport.methods.repeat.spec import GRAPH, PIECE, repeated_chunk, repeated_starts
from snapexport.runtime.engine.open_executor import open_executor


class RepeatMeasure(MethodMeasure):
    """Votes of the repeated prompt as vote.onnx adds them up; zeros if all of it is kept."""

    def votes(self, graphs: Prefilled, out: Feed, prompt: Array) -> Feed:
        manifest, length = graphs.manifest, len(prompt)
        votes = {
            names.past_of(spec.name): np.zeros(spec.shape, np.float32)
            for spec in manifest.graphs[GRAPH].outputs
        }
        chunk, is_whole = manifest.prefill_chunk, length <= manifest.geometry.held_whole
        for start in () if is_whole else repeated_starts(length, chunk):
            tokens = np.array(repeated_chunk(prompt.tolist(), chunk, start))
            out = graphs.run_chunk(out, tokens, length)
            given = votes | {names.PROMPT_LENGTH: np.array([length])}
            found = graphs.run_on(GRAPH, out, given)
            votes = {names.past_of(name): value for name, value in found.items()}
        return votes


def require_repeats(build: Build) -> None:
    """Raise UserError for a build whose prompts cannot be repeated to be measured."""
    manifest = build.manifest
    build.require_run(command="calibrate")
    facts = {"vote_queries": "repeat", "tensor_parallel": manifest.tensor_parallel}
    require_compatible(facts | manifest.model.features)
    Traces.of(build)


@contextmanager
def repeating(texts: Texts) -> Iterator[Build]:
    """A build derived from the texts', whatever votes there, that repeats prompts of their length.

    Raises UserError for a build without traces.
    """
    build = texts.build
    manifest, chunk = build.manifest, build.manifest.prefill_chunk
    sizes = {"L_sink": 0, "L_recent": 1, "K": 1, "pool_kernel": 1, "prefill_chunk": chunk}
    given = BuildOptions.of(
        model="",
        out=build.directory,
        L_max=max(map(len, texts.prompts)) + chunk,
        vote_queries="repeat",
        **sizes,
    )
    plain = GraphOptions(share_weights=manifest.graph_options.share_weights)
    with scratch(build.directory.resolve()) as folder:
        geometry = given.geometry(manifest.model)
        yield derive(build, geometry, folder / "repeated", plain, link_weights=True)


def attention_of(made: Build, texts: Texts) -> Iterator[dict[int, Array]]:
    """The largest attention that each text's repetition gives its positions, by layer that votes.

    made: of `repeating`. Each is float32 [Hkv,n].
    """
    if texts.attention:
        yield from texts.attention
        return
    with closing(open_executor(made, backend=texts.backend, role="prefill")) as executor:
        for text in texts.prompts:
            executor.prefill_prompt(0, text)
            taker = executor.taker(PIECE)
            assert isinstance(taker, Repetition)
            read, held = executor.backend.memory.read, taker.votes
            of_text = {
                layer: np.array(read(held[names.votes(layer)])[0, :, : len(text)], np.float32)
                for layer in made.manifest.geometry.widest
                if names.votes(layer) in held
            }
            yield of_text
            texts.attention.append(of_text)
            texts.on_prompt()


MEASURE = RepeatMeasure()
