"""Finds a checkpoint's decoder: checks its config, and looks at transformers' model of it.

The model is made on the meta device, so no weight is in memory. Its forward runs once with an
attention that records. Norms, RoPE and experts are confirmed by their numbers, never by name: what
is not confirmed is traced as it is, or refused.
"""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from snapexport.errors import UserError
from snapexport.exporter.model import require_readable
from snapexport.exporter.model.config import fix_longrope, position_limit, require_expressible
from snapexport.exporter.model.decoder import Decoder, Names
from snapexport.exporter.model.markers import APPLY_INTERLEAVED
from snapexport.exporter.model.models import (
    in_users_words,
    make_model,
    modeling_of,
    path_of,
    path_of_decoder,
    path_of_layers,
    settle_ropes,
)
from snapexport.exporter.model.probe.attention import IMPLEMENTATION, record
from snapexport.exporter.model.probe.experts import form_of_experts
from snapexport.exporter.model.probe.layers import (
    has_latents,
    layers_of,
    read_their_own,
    require_known_states,
    require_one_call_each,
    require_said_types,
)
from snapexport.exporter.model.probe.miniature import require_local
from snapexport.exporter.model.probe.operators import (
    norms_of,
    require_constant_ropes,
    require_said_ropes,
    rope_of,
)
from snapexport.exporter.model.probe.states import require_stated
from snapexport.exporter.quiet import quiet
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.read.config_fields import CORRECT
from snapexport.exporter.read.families import Family, family_of, read_as, unsupported
from snapexport.exporter.read.folders import CONFIG

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


_UNSEEN = "the model has another form than decoders have"
_OTHERS = "only decoders whose layers follow one another can be built"
_OF_MEDIA = re.compile(r"(image|video|vision|audio|bo[iva]|eo[iva])\w*_(id|index)")
"""Fields of a vision-language config that name such tokens."""
_looked_at: dict[str, Decoder] = {}
"""{config as JSON: what was seen}: a process looks at each model once."""


def look(
    config: "PretrainedConfig", family: Family, whole: "PretrainedConfig | None" = None
) -> Decoder:
    """Look at the model of a config, or at the text part of `whole`. Raises UserError."""
    found = [config.to_dict(), whole.to_dict() if whole else {}]
    for one in found:
        one.pop("_name_or_path", None)  # a temporary folder
    described = json.dumps([family.name, *found], sort_keys=True, default=str)
    if described not in _looked_at:
        with in_users_words(_UNSEEN, _OTHERS):
            _looked_at[described] = _look(config, family, whole)
    return _looked_at[described]


def _look(config: "PretrainedConfig", family: Family, whole: "PretrainedConfig | None") -> Decoder:
    probed = copy.deepcopy(config)
    probed._attn_implementation = IMPLEMENTATION
    model = _make(probed, whole)
    names = names_of(model)
    inside = model.get_submodule(names.decoder)
    with quiet():
        require_constant_ropes(config, inside)
        settle_ropes(inside)
        require_stated(modeling_of(model, names.decoder))
        norms = norms_of(model)
        expert_form = form_of_experts(model, config)
        recorded = record(model, names.decoder, names.layers)
        require_known_states(model, recorded, names.layers)
        require_one_call_each(model, recorded, names.layers)
        limit = position_limit(config)
        layers = layers_of(model, recorded, names.layers, limit, expert_form)
        require_said_types(config, layers)
        require_said_ropes(config, inside)
        require_local(inside, names.layers.removeprefix(f"{names.decoder}."))
        widest = max(layers, key=lambda layer: layer.key_dim)
        modeling = modeling_of(model, names.decoder)
        return Decoder(
            config=config,
            family=family,
            names=names,
            layers=layers,
            depth=tuple(range(len(layers))),
            whole=whole,
            norms=norms,
            rope=rope_of(modeling, inside, widest),
            interleaved_rope=rope_of(modeling, inside, widest, APPLY_INTERLEAVED),
            latent=has_latents(model, recorded, layers),
            expert_form=expert_form,
            layers_read_their_own=read_their_own(recorded, layers),
            never_sampled=_tokens_of_media(whole, config.vocab_size) if whole else (),
        )


def _tokens_of_media(whole: "PretrainedConfig", vocabulary: int) -> tuple[int, ...]:
    """The tokens that stand for parts of an image, a video or a sound."""
    fields = whole.to_dict().items()
    found = {value for name, value in fields if _OF_MEDIA.fullmatch(name) and type(value) is int}
    return tuple(sorted(token for token in found if 0 <= token < vocabulary))


def _make(config: "PretrainedConfig", whole: "PretrainedConfig | None") -> Any:
    with in_users_words(), torch.device("meta"):
        try:
            return make_model(config, whole).eval()
        except KeyError as error:
            if IMPLEMENTATION not in str(error):
                raise
            raise UserError(
                "the model attends by code of its own, not by transformers' interface",
                "only decoders that call transformers' attention interface can be built",
            ) from None


def names_of(model: Any) -> Names:
    """Where a model has its parts. Raises UserError."""
    decoder = path_of_decoder(model)
    tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
    return Names(
        decoder=decoder,
        layers=path_of_layers(model, decoder),
        embedding=path_of(model, model.get_input_embeddings()),
        head=path_of(model, model.get_output_embeddings()),
        tied=tied,
    )
