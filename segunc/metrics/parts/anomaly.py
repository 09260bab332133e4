"""Parts that need an anomaly label: the pixel protocols."""

from __future__ import annotations

class Pooled(AnomalyPart):
    """All pixels of the set in one pool; equal scores are one threshold."""

    names = (("auroc",), ("aupr",), ("fpr95",), ("best_f1",), ("threshold",))
    point = frozenset({("threshold",)})

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("scores", score, "pooled")

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.anomaly_counts(self.score)

    def coarsen(self, counts: Counts) -> Counts:
        return coarse_keys(counts)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        curve = detection_curve(counts)
        best = best_f1(curve)
        if best is None:
            return dict.fromkeys(self.names)
        threshold = key_values(self.score, forms, counts.shape[-1])[int(best[1])]
        values = (auroc(curve), average_precision(curve), fpr_at_recall(curve), best[0], float(threshold))
        return dict(zip(self.names, values, strict=True))

    def why(self, counts: Counts | None, name: Path) -> str:
        return super().why(counts, name) if counts is None else str(detection_curve(counts).undefined)
