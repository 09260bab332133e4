"""Counts and the numbers that follow from them: pure functions of arrays.

The same numbers are metrics of torchmetrics, which this package loads when they are first used:
``segunc.metrics.PixelAUROC`` and the other names of ``segunc.metrics.__all__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segunc.metrics.streaming import (
        AURC as AURC,
        AUSE as AUSE,
        ECE as ECE,
        FPR95 as FPR95,
        NLL as NLL,
        AdaptiveECE as AdaptiveECE,
        BestF1 as BestF1,
        BestF1Threshold as BestF1Threshold,
        Brier as Brier,
        ClassIoU as ClassIoU,
        ComponentF1 as ComponentF1,
        ComponentPPV as ComponentPPV,
        ComponentSIoU as ComponentSIoU,
        FailureAUROC as FailureAUROC,
        FailureAveragePrecision as FailureAveragePrecision,
        FailureFPR95 as FailureFPR95,
        FPRAtTPR as FPRAtTPR,
        MIoU as MIoU,
        PixelAccuracy as PixelAccuracy,
        PixelAUROC as PixelAUROC,
        PixelAveragePrecision as PixelAveragePrecision,
    )

__all__ = [
    "AURC",
    "AUSE",
    "ECE",
    "FPR95",
    "NLL",
    "AdaptiveECE",
    "BestF1",
    "BestF1Threshold",
    "Brier",
    "ClassIoU",
    "ComponentF1",
    "ComponentPPV",
    "ComponentSIoU",
    "FPRAtTPR",
    "FailureAUROC",
    "FailureAveragePrecision",
    "FailureFPR95",
    "MIoU",
    "PixelAUROC",
    "PixelAccuracy",
    "PixelAveragePrecision",
]


def __dir__() -> list[str]:
    return list(__all__)


if not TYPE_CHECKING:  # to type checkers, any name would be there

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'segunc.metrics' has no attribute '{name}'")
        from segunc.metrics import streaming

        return getattr(streaming, name)
