"""Decoders of transformers that are not compared are refused for a reason, or read as others."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from snapexport.errors import UserError
from snapexport.exporter.model.probe import load_decoder
from snapexport.exporter.read.checkpoint import Checkpoint
from tests.architectures.listed import HELD, OTHERS
from tests.oracle.families import FAMILIES
from tests.oracle.hybrids import HYBRIDS

pytestmark = pytest.mark.architectures

COMPARED = {name.partition(".")[0] for name in (*FAMILIES, *HYBRIDS)} | HELD.keys()
CLASSES = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
REST = [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in COMPARED]


@pytest.mark.parametrize("model_type", REST)
def test_model_type_is_refused_or_read_as_one_that_is_compared(
    model_type: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    config = AutoConfig.for_model(model_type, **OTHERS.get(model_type, {}))
    config.architectures = [CLASSES[model_type]]
    config.save_pretrained(tmp_path)
    try:
        load_decoder(Checkpoint.of_configs(tmp_path, {}))
    except UserError as error:
        noted = "reason", error.message
    else:
        text = config.get_text_config(decoder=True).model_type
        assert text in COMPARED, "give it a tiny config in tests/oracle/families.py"
        noted = "text", text
    record_property("type", model_type)
    record_property(*noted)
