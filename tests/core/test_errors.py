"""A lack of memory is told from every other error, however a library says it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segunc.core.errors import InputError, is_out_of_memory


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("too much"), True),
        (RuntimeError("could not create a primitive"), True),  # oneDNN
        (RuntimeError("could not create a memory object"), True),
        (RuntimeError("std::bad_alloc"), True),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("OpenCV(4.10) error: (-4:Insufficient memory) Failed to allocate 9 bytes in function"), True),
        (RuntimeError("memory format is not channels_last"), False),
        (RuntimeError("The size of tensor a must match"), False),
        (InputError("a memory of 3 is none"), False),
    ],
)
def test_a_lack_of_memory_is_known(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one


def test_torch_and_numpy_are_understood() -> None:
    for much in (lambda: torch.empty(2**50), lambda: np.empty(2**50)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            much()
        assert is_out_of_memory(caught.value)
