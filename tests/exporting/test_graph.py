"""Refusals of what cannot be traced or compared; they need no package of the extra ``export``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from segunc.core.errors import InputError
from segunc.exporting.check import check_guards
from segunc.exporting.graph import SizeGuard, _reason_of, trace


class ReadsTheFrame:
    """A sampler whose network asks for a value of the frame."""

    def graph_maps(self, image: Tensor, **settings: Any) -> Any:
        return image if image.mean() > 0.5 else -image


def test_a_network_that_reads_the_frame_is_not_traced() -> None:
    sampler: Any = ReadsTheFrame()
    with pytest.raises(
        InputError, match=r"^the network cannot be traced \(.*value out of a tracing"
    ):
        trace(sampler, torch.zeros(1, 3, 4, 4))


def test_another_branch_that_only_large_frames_take_is_refused() -> None:
    # 1025 x 1024 pixels are more than the 2 ** 20 that are compared.
    guard = SizeGuard("H < 1025", "net.py, line 7", ((1025, 1024),))
    unused: Any = None
    with pytest.raises(InputError) as refused:
        check_guards(unused, unused, [guard], "frame.onnx")
    assert "H < 1025 is false" in refused.value.message
    assert "for instance for 1025x1024" in refused.value.message
    assert refused.value.message.endswith("(frames of such a size are too large to be compared)")


def caused(*texts: str) -> Exception:
    """Return an error that the next one caused, and so on."""
    first, *others = [RuntimeError(text) for text in texts]
    error = first
    for cause in others:
        error.__cause__ = cause
        error = cause
    return first


def test_the_reason_of_an_export_is_the_first_operator_that_onnx_lacks() -> None:
    missing = "No ONNX function found for <OpOverload(op='aten.foo', overload='default')>"
    error = caused("export failed", missing, "the last cause")
    assert _reason_of(error) == "the operator aten.foo, which ONNX lacks"


def test_without_such_an_operator_it_is_the_error_that_the_others_come_from() -> None:
    reason = _reason_of(caused("export failed", "step 2 failed", "the last cause"))
    assert "the last cause" in reason
    assert "failed" not in reason
