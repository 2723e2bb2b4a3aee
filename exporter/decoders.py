"""Finds a checkpoint's decoder: reads and checks its config, and looks at the model of it."""

from typing import TYPE_CHECKING

from snapexport.errors import UserError
from snapexport.exporter.architectures import Decoder, Family, require_readable
from snapexport.exporter.architectures.config import require_expressible
from snapexport.exporter.architectures.fields import CORRECT
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.probe import look

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def load_decoder(checkpoint: Checkpoint, tensors: int = 0) -> Decoder:
    """Look at a checkpoint's decoder. Runs no foreign code. Raises UserError.

    tensors: how many there are, if the checkpoint has not read them yet.
    """
    family, found = require_readable(checkpoint), _config(checkpoint)
    if getattr(found, "is_encoder_decoder", False):
        raise UserError(
            "the model is an encoder with a decoder (is_encoder_decoder in config.json)",
            "use a checkpoint of a causal language model",
        )
    text = found.get_text_config(decoder=True)
    whole = None if text is found else found
    _require_known_class(family, found, is_whole=whole is not None)
    require_expressible(text, tensors or len(checkpoint.tensors))
    return look(text, family, whole)


def _config(checkpoint: Checkpoint) -> "PretrainedConfig":
    from transformers import AutoConfig

    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            checkpoint.directory, trust_remote_code=False
        )
    except Exception as error:  # transformers raises whatever its validators raise
        raise UserError(
            f"transformers refuses config.json: {' '.join(str(error).split())!s:.300}", CORRECT
        ) from None
    return config


def _require_known_class(family: Family, config: "PretrainedConfig", *, is_whole: bool) -> None:
    """transformers has one class of causal decoders for each model_type."""
    from transformers.models.auto import modeling_auto

    table = (
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        if is_whole
        else modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    )
    known = table.get(config.model_type)
    read_as = f"transformers reads it as {known}" if known else "transformers has no such decoder"
    if known != family.name:
        raise UserError(
            f"the architecture {family.name:.100} of a model_type '{family.model_type:.100}' is "
            f"not supported: {read_as}",
            "use a checkpoint of a causal language model; code that comes with a checkpoint is "
            "never run",
        )
