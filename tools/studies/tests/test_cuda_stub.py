"""`python -m tools.studies.cuda_stub`: empty CUDA libraries for onnxruntime-gpu."""

import pytest

from snapexport.contract.build_directory import Build
from tools.studies.cuda_stub import __main__ as stub


def test_cuda_stub_needs_onnxruntime_gpu(
    tiny_build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    if stub.library().is_file():
        pytest.skip("this is onnxruntime-gpu")
    assert stub.main([str(tiny_build.directory)]) == 2
    assert capsys.readouterr().err.startswith(
        "error: onnxruntime-gpu is not installed here\n\nhint:"
    )


def test_cuda_stub_defines_each_function_once() -> None:
    """Functions of cudart.c are not written again. The others return success."""
    text = stub.source(["cudaMalloc", "cudaStreamWaitEvent", "cublasCreate_v2"], stub.CUDART)
    assert text.splitlines() == [
        "long cudaStreamWaitEvent() { return 0; }",
        "long cublasCreate_v2(void **it) { *it = (void *)16; return 0; }",
        "int _;",
    ]


def test_cuda_stub_notes_calls_of_products() -> None:
    """cuBLAS launches kernels of its own: each product counts as one."""
    text = stub.source(["cublasGemmEx", "cublasSetStream_v2"], None)
    assert 'stub_launched("cublasGemmEx")' in text and text.count("stub_launched(") == 2


@pytest.mark.parametrize(
    "function, name",
    [
        ("void ort::_Unary<float, ort::OP_Cast<float, int> >(float const*, int)", "_Unary"),
        ("ort::(anonymous namespace)::Scale(long, long)", "Scale"),
        ("cublasGemmEx", "cublasGemmEx"),
    ],
)
def test_kernels_are_named_without_types(function: str, name: str) -> None:
    assert stub.short(function) == name
