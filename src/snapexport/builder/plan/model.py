"""What of a checkpoint decides how much memory it takes: read from its config and headers alone."""

from collections import Counter
from dataclasses import dataclass

from snapexport.contract.errors import UserError, needs_extra
from snapexport.contract.manifest import DType, ModelFacts
from snapexport.exporter import hub
from snapexport.exporter.checkpoint import Checkpoint

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_STORED: dict[str, DType] = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A checkpoint's sizes.

    linear: [N,K] of every linear layer, the head's too where it is the embedding (tied). others:
    elements of norms and biases. softcapped: attention's scores. stored: the dtype of most bytes.
    """

    facts: ModelFacts
    hidden_size: int
    intermediate_size: int
    linear: tuple[tuple[int, int], ...]
    others: int
    tied: bool
    softcapped: bool
    stored: DType

    @property
    def embedding(self) -> int:
        """Elements of the embedding table [V,E]."""
        return self.facts.vocab_size * self.hidden_size


def read_model(model: str) -> PlannedModel:
    """Of a checkpoint directory, or of a Hub id. Raises UserError for what `build` would refuse."""
    checkpoint = Checkpoint.open(hub.resolve(model))
    with needs_extra("build"):
        from snapexport.exporter import architectures

        architecture = architectures.require_verified(checkpoint)
        config = architectures.load_config(checkpoint)
    tied = bool(config.tie_word_embeddings)
    _require_weights(checkpoint, (_EMBEDDING,) if tied else (_EMBEDDING, _HEAD))
    wanted = {
        name: span.shape
        for name, span in checkpoint.tensors.items()
        if name.startswith("model.") or name == _HEAD
    }
    # The head is counted once, from wherever it comes.
    embedding, head = wanted.pop(_EMBEDDING), wanted.pop(_HEAD, ())
    linear = [(shape[0], shape[1]) for shape in wanted.values() if len(shape) == 2]
    linear.append((embedding[0], embedding[1]) if tied else (head[0], head[1]))
    return PlannedModel(
        facts=architectures.model_facts(architecture, config, checkpoint),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        linear=tuple(linear),
        others=sum(shape[0] for shape in wanted.values() if len(shape) == 1),
        tied=tied,
        softcapped=getattr(config, "attn_logit_softcapping", None) is not None,
        stored=_mostly_stored(checkpoint),
    )


def _require_weights(checkpoint: Checkpoint, names: tuple[str, ...]) -> None:
    for name in names:
        shape = checkpoint.tensors[name].shape if name in checkpoint.tensors else ()
        if len(shape) != 2:
            raise UserError(
                f"the checkpoint has no matrix {name}",
                "download the checkpoint again, or check config.json against it",
            )


def _mostly_stored(checkpoint: Checkpoint) -> DType:
    nbytes: Counter[str] = Counter()
    for span in checkpoint.tensors.values():
        nbytes[span.dtype] += span.nbytes
    (dtype, _), *_ = nbytes.most_common(1)
    return _STORED.get(dtype, "fp32")
