"""The model's inputs and outputs, as Triton's clients see them: names, types and shapes.

The names are those of TensorRT-LLM's and vLLM's models for Triton: their clients and Triton's
OpenAI frontend know them. Every shape has a batch dimension of 1 before it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Device = Literal["cpu", "gpu"]
DType = Literal["STRING", "BOOL", "INT32", "UINT64", "FP32"]

MODEL_FILE = "model.py"
VERSION = "1"
BUILD = "build"
"""The build's place in the model's version directory."""
UNARY_SUFFIX = "_unary"
"""Suffix of the unary model's name."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output. dims [1]: a single value; [-1]: a list."""

    name: str
    dtype: DType
    dims: tuple[int, ...] = (1,)


INPUTS = (
    Tensor("text_input", "STRING"),
    Tensor("input_ids", "INT32", (-1,)),
    Tensor("max_tokens", "INT32"),
    Tensor("stream", "BOOL"),
    Tensor("temperature", "FP32"),
    Tensor("top_p", "FP32"),
    Tensor("top_k", "INT32"),
    Tensor("seed", "UINT64"),
    Tensor("stop_words", "STRING", (-1,)),
    Tensor("stop_token_ids", "INT32", (-1,)),
    Tensor("ignore_eos", "BOOL"),
    Tensor("logprobs", "INT32"),
    Tensor("exclude_input_in_output", "BOOL"),
    Tensor("return_num_input_tokens", "BOOL"),
    Tensor("return_num_output_tokens", "BOOL"),
    Tensor("frequency_penalty", "FP32"),
    Tensor("presence_penalty", "FP32"),
    Tensor("repetition_penalty", "FP32"),
    Tensor("min_p", "FP32"),
    Tensor("min_tokens", "INT32"),
    Tensor("structured_outputs", "STRING"),
)
"""All are optional for Triton. The backend itself requires a prompt."""

OUTPUTS = (
    Tensor("text_output", "STRING"),
    Tensor("finish_reason", "STRING"),
    Tensor("num_input_tokens", "INT32"),
    Tensor("num_output_tokens", "INT32"),
    Tensor("output_ids", "INT32", (-1,)),
    Tensor("output_logprobs", "STRING"),
)

OUTPUT_NAMES = frozenset(tensor.name for tensor in OUTPUTS)

TRITONS_PARAMETERS = frozenset({"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"})
"""Parameters of either model that Triton's Python backend reads itself."""

Code = Literal["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]
"""Triton's error codes, as far as the model uses them. UNAVAILABLE: its queue is full."""

CODE_IN_MESSAGE = "error_code_in_message"
"""A request parameter: errors then begin with their code, as in "UNAVAILABLE: ...".

Triton keeps the code of an error to itself in gRPC streams and in /generate (always 400), and loses
it from one model to another (all become INTERNAL, server #7804).
"""
TIMEOUT = "timeout"
"""A request parameter for /generate: microseconds. Elsewhere Triton has its own of that name."""
HEALTH = "health"
"""A request parameter: true is answered at once, without tokens, if the model lives."""
PARAMETERS = frozenset({TIMEOUT, CODE_IN_MESSAGE, HEALTH})
"""Other parameters are refused, since /generate makes a parameter of every misspelt input."""


def code_and_message(error: str) -> tuple[Code, str]:
    """(code, text) of an error that begins with its code; else (INTERNAL, error)."""
    for code in get_args(Code):
        if error.startswith(f"{code}: "):
            return code, error.removeprefix(f"{code}: ")
    return "INTERNAL", error
