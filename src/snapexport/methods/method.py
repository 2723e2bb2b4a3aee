"""Defines a cache method: the record that the layers loop over.

A method leaves out what it does not do. Its heavier parts are modules beside its `spec.py`, loaded
when a layer asks for them.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_options import GraphOptions, MethodOptions
from snapexport.contract.graph_specs import GraphFacts, Tensors
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.names import Likeliest
from snapexport.contract.pieces import FurtherWork, InnerChunks
from snapexport.contract.rule import Facts, Rule
from snapexport.contract.targets import Target
from snapexport.contract.vote import Voter
from snapexport.errors import UserError
from snapexport.files.dtypes import DType
from snapexport.files.untrusted import read_object

IsOn = Callable[[CacheGeometry, GraphOptions], bool]

Resolve = Callable[[GraphOptions, Target, DType], GraphOptions]
Reshape = Callable[[CacheGeometry, GraphOptions, ModelFacts, CacheGeometry | None], CacheGeometry]


class Calibration(NamedTuple):
    """A measurement by `snapexport calibrate` for a method.

    flag: of `calibrate`, by field. help: for its --help. file: its name beside others. taken_as:
    the field of the method's options that takes it. is_default: measured without a flag.
    """

    flag: str
    help: str
    file: str
    taken_as: str
    is_default: bool = False


def read_calibration(
    path: Path, most: int, form: str, further: set[str], hint: str
) -> dict[str, Any]:
    """Read what a file of `snapexport calibrate` holds, among it a list `layers`. Raises UserError.

    form: its format. further: keys beside `format`, `layers` and `calibration`.
    """
    try:
        found = read_object(path, most, hint)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}", hint) from None
    if found.get("format") != form or set(found) != {"format", "layers", "calibration"} | further:
        what = form.removeprefix("snapexport ").removesuffix(" 1")
        raise UserError(f"{path} does not hold {what}", hint)
    if not isinstance(found["layers"], list):
        raise UserError(f"{path}: layers is not a list", hint)
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """One cache method.

    home: its package, which holds `parts`.
    parts: the modules beside `spec.py`: surgery, run, measure, export.
    is_on: whether a build uses it, by its geometry and graph options.
    options: the class of its flags.
    run_flags: help of what can be asked of a build that has it when it is run, by `LLMConfig`'s
        fields.
    in_blocks: the options with which prompts can go block by block onto a compressed cache.
    voters: for --vote-queries, where it is about who votes. implies_vote: whether options imply the
        first of them.
    rules, run_rules: what it excludes: in a build, and when a build is run.
    facts: what the rules of a finished build ask of its geometry, by flag.
    budget: the value of --budget that selects it. budget_help: what it is.
    reshape: returns a geometry as the options and the model need it. Its last argument is the
        geometry of a finished build that the result has to be like, if there is one.
    stores: the value of --cache-dtype that it stores caches in.
    resolve: fills in the defaults of graph options that it decides.
    step_tokens: most tokens of a batch slot in a decode step.
    chunks: tokens of the chunks that it adds graphs for, by graph options, geometry, the prefill
        chunk and whether each graph holds a copy of the weights. Raises UserError.
    further_layers: how many layers after the model's last its graphs run.
    tensors: what it adds to a graph of a kind, beside that kind's common tensors.
    likeliest: outputs that it adds, from which the host samples in place of the logits.
    kinds: kinds of graphs of its own.
    reads_hidden_states: whether it needs the hidden states of the last layer of each trace.
    inner: the chunks inside a prompt that run in a graph of its own, of the prefill chunk's tokens.
    further: prefill work after a prompt's chunks.
    vote_scores: bytes of the scores of one layer's vote over `slots` positions.
    report: what a summary says of every build, for programs.
    calibration: what its `measure` part measures on texts.
    measures: whether a build measures texts, and makes its graphs again by what was found.
    advice: flags that a plan advises for a cache of a model, by field, and what for.
    words: lines about it in a summary, by their titles.
    """

    name: str
    home: str
    parts: tuple[str, ...] = ()
    is_on: IsOn
    options: type[MethodOptions] | None = None
    run_flags: Mapping[str, str] = field(default_factory=dict)
    in_blocks: MethodOptions | None = None
    voters: tuple[Voter, ...] = ()
    implies_vote: Callable[[GraphOptions], bool] = lambda options: False
    rules: tuple[Rule, ...] = ()
    run_rules: tuple[Rule, ...] = ()
    facts: Callable[[CacheGeometry], Facts] = lambda geometry: {}
    stores: str | None = None
    budget: str | None = None
    budget_help: str = ""
    reshape: Reshape = lambda geometry, options, model, like: geometry
    resolve: Resolve = lambda options, target, dtype: options
    step_tokens: Callable[[GraphOptions], int] = lambda options: 1
    chunks: Callable[[GraphOptions, CacheGeometry, int, bool], Sequence[int]] = lambda *_: ()
    further_layers: Callable[[GraphOptions], int] = lambda options: 0
    tensors: Callable[[GraphFacts, str, Tensors], Tensors] = lambda facts, kind, common: ({}, {})
    likeliest: Likeliest | None = None
    kinds: tuple[GraphKind, ...] = ()
    reads_hidden_states: bool = False
    inner: Callable[[GraphOptions, int], InnerChunks | None] = lambda options, chunk: None
    further: Callable[[CacheGeometry], FurtherWork | None] = lambda geometry: None
    vote_scores: Callable[[ModelFacts, CacheGeometry, int], int] | None = None
    report: Callable[[CacheGeometry, GraphOptions], Facts] = lambda geometry, options: {}
    calibration: Calibration | None = None
    measures: IsOn = lambda geometry, options: False
    advice: Callable[[CacheGeometry, ModelFacts], tuple[Facts, str] | None] = lambda *_: None
    words: Callable[[CacheGeometry, GraphOptions], Mapping[str, str]] = lambda geometry, options: {}

    def with_measured(self, options: GraphOptions, file: Path) -> GraphOptions:
        """Graph options that take a file of its measurement."""
        assert self.options and self.calibration, f"{self.name} measures nothing"
        given = replace(options.of(self.options), **{self.calibration.taken_as: file})
        return options.with_options(given)

    def part(self, name: str) -> Any:
        """The object under the part's name in capitals in its module; None without the part."""
        if name not in self.parts:
            return None
        return getattr(importlib.import_module(f"{self.home}.{name}"), name.upper())


def votes_by(*voters: Voter) -> IsOn:
    """An `is_on` that holds for builds with one of these voters."""
    return lambda geometry, options: geometry.voter in voters
