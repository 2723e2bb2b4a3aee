"""Finds a checkpoint's decoder: reads and checks its config, and looks at the model of it."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from snapexport.errors import UserError
from snapexport.exporter.architectures import Decoder, Family, require_readable
from snapexport.exporter.architectures.config import fix_longrope, require_expressible
from snapexport.exporter.architectures.families import family_of
from snapexport.exporter.architectures.fields import CORRECT
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.known import read_as, unsupported
from snapexport.exporter.probe import look
from snapexport.exporter.text_files import CONFIG

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def load_decoder(
    checkpoint: Checkpoint, tensors: int = 0, longrope_for: int | None = None
) -> Decoder:
    """Look at a checkpoint's decoder. Runs no foreign code. Raises UserError.

    tensors: how many there are, if the checkpoint has not read them yet. longrope_for: the length
    of sequences by which one set of a longrope's frequencies is chosen.
    """
    family, found = require_readable(checkpoint), _config(checkpoint)
    if getattr(found, "is_encoder_decoder", False):
        raise UserError(
            "the model is an encoder with a decoder",
            "use a checkpoint of a causal language model",
        )
    text = found.get_text_config(decoder=True)
    whole = None if text is found else found
    family = _known_family(family, found, is_whole=whole is not None)
    chosen = None if longrope_for is None else fix_longrope(text, longrope_for)
    require_expressible(text, tensors or len(checkpoint.tensors))
    return replace(look(text, family, whole), longrope=chosen)


def _config(checkpoint: Checkpoint) -> "PretrainedConfig":
    from transformers import AutoConfig

    try:
        # Of what was read, and not of the file again: it may begin with a byte order mark.
        with TemporaryDirectory(prefix="snapexport-config-") as folder:
            (Path(folder) / CONFIG).write_text(json.dumps(checkpoint.config))
            config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever its validators raise
        raise UserError(
            f"transformers refuses config.json: {' '.join(str(error).split())!s:.300}", CORRECT
        ) from None
    return config


def _known_family(family: Family, config: "PretrainedConfig", *, is_whole: bool) -> Family:
    """The family of the class that transformers loads: it has one for each model_type.

    It may read a config as another model_type than the file says, such as a Mistral whose layers
    differ as a Ministral.
    """
    from transformers.models.auto import modeling_auto

    table = (
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        if is_whole
        else modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    )
    known = table.get(config.model_type)
    if known == family.name:
        return family
    if isinstance(known, str) and config.model_type != family.model_type:
        return family_of(known, config.model_type)
    if isinstance(known, str):
        raise read_as(family.name, family.model_type, known)
    raise unsupported(family.name, family.model_type, "transformers has no such decoder")
