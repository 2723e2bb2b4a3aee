"""SmolLM2-135M-Instruct: the GGUF file, a build of it, and transformers' own model of the file.

`make real-model` fetches the file.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from snapexport.contract.build_directory import Build

FILE = Path("build/real-model/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gguf_file(pytestconfig: pytest.Config) -> Path:
    file = pytestconfig.rootpath / FILE
    if not file.is_file():
        pytest.skip(f"{FILE} is not there: `make real-model` fetches it")
    return file


@pytest.fixture(scope="session")
def build(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> "Build":
    """The baseline graphs have the full cache. Weights are fp32: products of integers round."""
    from snapexport.builder import build

    out = tmp_path_factory.mktemp("real-model") / "smollm2.build"
    options: dict[str, Any] = {"kv_budget": 256, "batch": 1, "prefill_chunk": 128}
    return build(gguf_file, out, L_max=512, **options, baseline=True, weights="dequantize")


@pytest.fixture(scope="session")
def original(gguf_file: Path) -> Any:
    """transformers' model, config and weights by its own reader of GGUF files."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    model = AutoModelForCausalLM.from_config(config).eval()
    read = load_gguf_checkpoint(gguf_file, return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(read["tensors"], strict=False, assign=True)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.fixture(scope="session")
def tokenizer(build: "Build") -> Any:
    """transformers' tokenizer, of the build's files."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(build.directory)
