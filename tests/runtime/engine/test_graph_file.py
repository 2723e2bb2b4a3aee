"""What is not a graph's file is refused."""

import pytest

from snapexport.runtime.engine.graph_file import read_model


@pytest.mark.parametrize("data", [b"", b"\x3a", b"\x3a\x05ab", b"\x08\xff", b"\x0d\x00", b"\x7b"])
def test_what_is_not_a_model_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_model(data)
