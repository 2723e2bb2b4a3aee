"""A decoder: transformers' config, and what was seen in the model that it makes.

Does not know checkpoints, torch or graphs. `exporter/model/probe/` looks.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from snapexport.contract.model_facts import StateSizes
from snapexport.exporter.read.families import Family
from snapexport.graphs.markers import SWISH

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class ExpertSizes(NamedTuple):
    """Experts of a layer, how many of them a token chooses, and the sizes of one.

    width: I. hidden: of what it reads. matrices: 3 with a gate, 2 without.
    """

    experts: int
    chosen: int
    width: int
    hidden: int
    matrices: int


@dataclass(frozen=True)
class ExpertForm:
    """The layout of stacks of experts, and what the experts compute (EXPERTS of graphs/markers.py).

    transposed: [E,K,N] instead of [E,N,K]. in_turn: row 2i is a gate and 2i + 1 its up; else all
    gates come before all ups. scaled_inputs: an expert reads states times its weight, and gives
    what it makes of them as it is (Llama 4). gated: false for an up without a gate.
    """

    transposed: bool = False
    in_turn: bool = False
    activation: str = SWISH
    alpha: float = 1.0
    beta: float = 0.0
    limit: float = 0.0
    scaled_inputs: bool = False
    gated: bool = True


@dataclass(frozen=True, kw_only=True)
class RMSNorm:
    """How the model's modules of one class normalize.

    epsilon: name of the module's attribute. weight_offset: added to the weight. in_fp32: the
    weight is applied in fp32, before the result is rounded to the model's dtype.
    """

    epsilon: str
    weight_offset: float
    in_fp32: bool


Frequencies = Literal["halves", "steps", "pairs"]
"""The place of the cosine of a head's i-th pair in a row of cosines: at i, and once more in the
second half; at 2i and 2i + 1; or at i, with one for each pair."""


@dataclass(frozen=True)
class Rope:
    """How `apply_rotary_pos_emb` rotates. interleaved: pairs are channels 2i and 2i + 1.

    of_text: the model has an angle for each axis of an image, and a text's are all alike.
    takes: queries and keys with cosines and sines, one of them, or both with complex numbers, as
    [B,C,H,D] or as [B,H,C,D] (complex by head).
    """

    frequencies: Frequencies
    interleaved: bool
    takes: Literal["both", "one", "complex", "complex by head"] = "both"
    of_text: bool = False


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer. Layers of one `kind` differ only in their weights and their index.

    window: positions that attention sees, the row's own included; 0: all. chunk: attention sees the
    positions from the last multiple of it; 0: all. cache_of: the layer whose keys and values it
    reads; -1: none, and what is said of attention is that of a layer that attends. states: its
    recurrent states. experts: None for one MLP.
    """

    kind: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    chunk: int = 0
    sinks: bool = False
    softcapped: bool = False
    cache_of: int = -1
    states: StateSizes | None = None
    experts: ExpertSizes | None = None


@dataclass(frozen=True, kw_only=True)
class Names:
    """Where transformers' model has its parts: paths of modules.

    decoder: what makes hidden states of tokens. layers: the list of its layers. embedding, head:
    modules with a weight. tied: {weight: the weight that it equals}.
    """

    decoder: str
    layers: str
    embedding: str
    head: str
    tied: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """One decoder, as it is built.

    config: of the text. whole: the config of the vision-language model around it; None without one.
    depth: the indices of the layers that are left of the model, in order. norms: {class of a
    module: its form}; others are traced as they are. rope: None if it is traced as it is.
    interleaved_rope: of `apply_rotary_pos_emb_interleave`, which orders channels anew. latent:
    whether attention is latent (MLA). expert_form: None without experts. layers_read_their_own: an
    input that is not every other layer's, or another layer's cache, so that each has to be traced.
    never_sampled: tokens that stand for an image or a sound in a prompt. longrope: which set of
    RoPE's frequencies holds for every sequence.
    """

    config: "PretrainedConfig"
    family: Family
    names: Names
    layers: tuple[Layer, ...]
    depth: tuple[int, ...]
    whole: "PretrainedConfig | None" = None
    norms: Mapping[str, RMSNorm] = field(default_factory=dict)
    rope: Rope | None = None
    interleaved_rope: Rope | None = None
    latent: bool = False
    expert_form: ExpertForm | None = None
    layers_read_their_own: bool = False
    never_sampled: tuple[int, ...] = ()
    longrope: Literal["long", "short"] | None = None

    @property
    def embedding(self) -> str:
        """The name of the embedding's weight."""
        return f"{self.names.embedding}.weight"

    @property
    def head(self) -> str:
        """The name of the head's weight."""
        return f"{self.names.head}.weight"

    @property
    def tied(self) -> bool:
        """Whether the head's weight is the embedding's."""
        return self.names.tied.get(self.head) == self.embedding

    @property
    def kinds(self) -> list[int]:
        return [layer.kind for layer in self.layers]

    @property
    def experts(self) -> ExpertSizes | None:
        """The sizes of the experts; all layers that have some have the same."""
        return next((layer.experts for layer in self.layers if layer.experts), None)

    def left_with(self, depth: Sequence[int]) -> "Decoder":
        """The decoder of some of these layers, by their places.

        Where one reads another's cache, both are among them.
        """
        places = {-1: -1} | {place: new for new, place in enumerate(depth)}
        layers = [self.layers[place] for place in depth]
        return replace(
            self,
            config=copy.deepcopy(self.config),
            layers=tuple(replace(layer, cache_of=places[layer.cache_of]) for layer in layers),
            depth=tuple(self.depth[place] for place in depth),
        )
