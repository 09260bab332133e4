"""The table of scores: unit, bounds, stored form, colours, and a formula over *evidence*.

The sampler gathers the evidence. Nothing here imports torch: formulas are named by where they
stand, and imported when they are first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from segunc.core.errors import InputError
from segunc.core.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

CLASS_SCORES = "class scores"
FEATURE_DISTANCE = "feature distance"
NEAREST = "nearest features"
"""Given with the feature distance: a :data:`segunc.sampling.sampler.Nearest` for each frame."""
MUTUAL_INFORMATION = "mutual information"
"""Of class and draw, ``[n, H, W]``, as a share of ln C. Only graphs give it."""
SUM = "sum of scores"
SET_THRESHOLD = "threshold of class sets"
Source = Literal["draws", "base", "constant", "frame", "scores"]
"""Where the sampler has evidence from.

``draws`` are sums over the draws, ``base`` is the base network. The others were fitted on the
model: a ``constant``, maps of the ``frame`` that are made beside the network, or maps of other
``scores`` at the frame's own size.
"""


@dataclass(frozen=True)
class Evidence:
    """One thing that formulas are given, at the size of the network's output.

    Attributes:
        meaning: with its shape.
        source: where the sampler has it from.
        without: what messages say of a model that lacks it; for what was fitted on a model.
        method: which ``segunc finetune --method`` makes it; likewise.
    """

    meaning: str
    source: Source
    without: str = ""
    method: str = ""


EVIDENCE: Registry[Evidence] = Registry(
    "evidence",
    "segunc.evidence",
    {
        "probabilities": Evidence(
            meaning=(
                "[n, C, H, W] mean over the draws of p, calibrated where the model has a "
                "calibrator of the mean"
            ),
            source="draws",
        ),
        "calibrated entropy": Evidence(
            meaning="[n, H, W] entropy of these probabilities, share of ln C",
            source="draws",
        ),
        "total entropy": Evidence(
            meaning="[n, H, W] entropy of the mean p of the draws as they are, share of ln C",
            source="draws",
        ),
        "expected entropy": Evidence(
            meaning="[n, H, W] mean over the draws of the entropy of p, share of ln C",
            source="draws",
        ),
        "mean max logit": Evidence(
            meaning="[n, H, W] mean over the draws of the negative maximum of their logits",
            source="draws",
        ),
        "mean energy": Evidence(
            meaning="[n, H, W] mean over the draws of -T log-sum-exp of their logits / T",
            source="draws",
        ),
        "logit variance": Evidence(
            meaning=(
                "[n, H, W] variance of the logits over the draws, divisor S, mean over the classes"
            ),
            source="draws",
        ),
        "base logits": Evidence(
            meaning="[n, C, H, W] of the base network, float32",
            source="base",
        ),
        CLASS_SCORES: Evidence(
            meaning=(
                "[n, C, H, W] class scores of the base network, at least 0; only networks that "
                "classify masks have them"
            ),
            source="base",
        ),
        "temperature": Evidence(
            meaning="T > 0 of the model, a number",
            source="base",
        ),
        FEATURE_DISTANCE: Evidence(
            meaning="[n, H, W] of features to the nearest of the training set, 0..2",
            source="frame",
            without="without features of its training set",
            method="features",
        ),
        SUM: Evidence(
            meaning="[n, H, W] of other scores",
            source="scores",
            without="that does not say what it is a sum of",
            method="anomaly",
        ),
        SET_THRESHOLD: Evidence(
            meaning=(
                "lambda in 0..1, a number: p is at least 1 - lambda in the prediction set of a "
                "pixel"
            ),
            source="constant",
            without="without sets of classes",
            method="class-sets",
        ),
    },
)


@dataclass(frozen=True)
class Score:
    """A score of pixels, higher where the network is to be trusted less.

    Attributes:
        name: as the user writes it, and the name of its folder.
        meaning: in one line.
        source: of the definition.
        unit: of its values.
        lower: bound of its values; None is unbounded.
        upper: likewise.
        stored: uint16 codes of values in 0..1 (``(code / 65535)^2``), or float16.
        needs: names of :data:`EVIDENCE`.
        formula: from what it needs, in that order, to its values ``[n, H, W]``, or ``module:name``
            where it stands. None where the one thing that it needs is the score.
        colours: the two ends of the colour bar of all frames; None takes them from the maps.
        threshold: from which value on a pixel belongs to a component; None counts no components
            unless one is given.
        measured_to: up to which value its fit has measured, if the maps do not say; what lies
            beyond is extrapolated.
        resized: what is resized bilinearly to the frame's size: the ``map``, or the ``evidence``
            before the formula. The map of a score of the base network and constants alone is always
            resized as a map.
        title: what readers call it; where empty, its name with spaces.
        scale: what the ends of its scale mean to a reader; where empty, the meaning is shown.
        direct: further evidence that is the score itself; where it is given, the formula is not
            used. Graphs give some, because the formula loses digits in float32.

    Raises:
        InputError: a score stored as codes may leave 0..1, or has no formula for several kinds of
            evidence.
    """

    name: str
    meaning: str
    source: str
    unit: str
    lower: float | None
    upper: float | None
    stored: Literal["unit16", "float16"]
    needs: tuple[str, ...]
    formula: Callable[..., Tensor] | str | None = None
    colours: tuple[float, float] | None = None
    threshold: float | None = None
    measured_to: float | None = None
    resized: Literal["map", "evidence"] = "map"
    title: str = ""
    scale: str = ""
    direct: str = ""

    def __post_init__(self) -> None:
        inside = False  # 0..1
        if self.lower is not None and self.upper is not None:
            inside = 0 <= self.lower < self.upper <= 1
        if self.stored == "unit16" and not inside:
            raise InputError(
                f"score '{self.name}' in {self.lower}..{self.upper} cannot be stored as codes of "
                "0..1",
                hint="store it as float16",
            )
        if not self.needs or (self.formula is None and len(self.needs) > 1):
            needs = ", ".join(self.needs) or "nothing"
            raise InputError(f"score '{self.name}' has no formula for what it needs: {needs}")

    @property
    def sources(self) -> frozenset[Source]:
        """Where the evidence that it needs comes from."""
        return frozenset(EVIDENCE[name].source for name in self.needs)

    def __call__(self, evidence: Mapping[str, Any]) -> Tensor:
        """Return its values ``[n, H, W]``, of any floating type."""
        if self.direct in evidence:
            made: Tensor = evidence[self.direct]
            return made
        formula: Any = self.formula
        if formula is None:
            only: Tensor = evidence[self.needs[0]]
            return only
        if isinstance(formula, str):
            module, _, attribute = formula.partition(":")
            formula = getattr(importlib.import_module(module), attribute)
        values: Tensor = formula(*(evidence[name] for name in self.needs))
        return values


_LN_C = "share of ln C"
_SCALE_OF_ENTROPY = "0 = certain, 1 = all classes equally likely"
_SCALE_OF_MSP = "0 = certain; 1 less the highest probability"
_TABLE = (
    Score(
        name="msp",
        meaning="how unlikely the most probable class is",
        source="Hendrycks & Gimpel 2017, arXiv 1610.02136",
        unit="1 - max mean probability",
        lower=0,
        upper=1,
        stored="unit16",
        needs=("probabilities",),
        formula="segunc.uncertainty:max_softmax",
        colours=(0, 1),
        threshold=0.5,
        # The confidence must be that of the class that is predicted at the frame's size.
        resized="evidence",
        title="1 − confidence",
        scale=_SCALE_OF_MSP,
    ),
    Score(
        name="entropy",
        meaning="total uncertainty: entropy of the mean probabilities",
        source="Depeweg et al. 2018, arXiv 1710.07283",
        unit=_LN_C,
        lower=0,
        upper=1,
        stored="unit16",
        needs=("calibrated entropy",),
        colours=(0, 1),
        threshold=0.5,
        scale=_SCALE_OF_ENTROPY,
    ),
    Score(
        name="aleatoric",
        meaning="expected entropy of one draw",
        source="Depeweg et al. 2018, arXiv 1710.07283",
        unit=_LN_C,
        lower=0,
        upper=1,
        stored="unit16",
        needs=("expected entropy",),
        colours=(0, 1),
        threshold=0.5,
        title="aleatoric (data)",
        scale="0 = every draw is certain, 1 = every draw is torn",
    ),
    Score(
        name="epistemic",
        meaning="mutual information of class and parameters",
        source="Houlsby et al. 2011, arXiv 1112.5745",
        unit=_LN_C,
        lower=0,
        upper=1,
        stored="unit16",
        needs=("total entropy", "expected entropy"),
        formula="segunc.uncertainty:mutual_information",
        direct=MUTUAL_INFORMATION,
        # With usual alphas it rarely passes a tenth of ln C, which is a strong disagreement: on
        # 0..1 it would look empty.
        colours=(0, 0.1),
        threshold=0.1,
        resized="evidence",
        title="epistemic (model)",
        scale="0 = all draws agree; more: they contradict each other",
    ),
    Score(
        name="deterministic-msp",
        meaning="msp of the base network",
        source="Hendrycks & Gimpel 2017, arXiv 1610.02136",
        unit="1 - max probability",
        lower=0,
        upper=1,
        stored="unit16",
        needs=("base logits", "temperature"),
        formula="segunc.uncertainty:max_softmax_of_logits",
        colours=(0, 1),
        threshold=0.5,
        title="1 − confidence of the base",
        scale=_SCALE_OF_MSP,
    ),
    Score(
        name="deterministic-entropy",
        meaning="entropy of the base network's probabilities",
        source="Shannon 1948",
        unit=_LN_C,
        lower=0,
        upper=1,
        stored="unit16",
        needs=("base logits", "temperature"),
        formula="segunc.uncertainty:entropy_share_of_logits",
        colours=(0, 1),
        threshold=0.5,
        title="entropy of the base",
        scale=_SCALE_OF_ENTROPY,
    ),
    Score(
        name="deterministic-max-logit",
        meaning="how low the largest logit of the base network is",
        source="Hendrycks et al. 2022, arXiv 1911.11132",
        unit="negative max logit",
        lower=None,
        upper=None,
        stored="float16",
        needs=("base logits",),
        formula="segunc.uncertainty:negative_max_logit",
        title="max logit of the base",
    ),
    Score(
        name="deterministic-energy",
        meaning="free energy of the base network's logits",
        source="Liu et al. 2020, arXiv 2010.03759",
        unit="-T log-sum-exp of the logits / T",
        lower=None,
        upper=None,
        stored="float16",
        needs=("base logits", "temperature"),
        formula="segunc.uncertainty:energy",
        title="energy of the base",
    ),
    Score(
        name="mean-max-logit",
        meaning="how low the largest logit of a draw is, in the mean",
        source="Hendrycks et al. 2022, arXiv 1911.11132",
        unit="negative max logit, mean over the draws",
        lower=None,
        upper=None,
        stored="float16",
        needs=("mean max logit",),
    ),
    Score(
        name="mean-energy",
        meaning="free energy of the logits of a draw, in the mean",
        source="Liu et al. 2020, arXiv 2010.03759",
        unit="-T log-sum-exp of the logits / T, mean over the draws",
        lower=None,
        upper=None,
        stored="float16",
        needs=("mean energy",),
    ),
    Score(
        name="logit-variance",
        meaning="how much the logits vary over the draws",
        source="Gal 2016, thesis, section 3.3",
        unit="variance over the draws (divisor S) of the logits, mean over the classes",
        lower=0,
        upper=None,
        stored="float16",
        needs=("logit variance",),
    ),
    Score(
        name="rba",
        meaning="how little any class claims a pixel",
        source="Nayal et al. 2023, arXiv 2211.14293",
        unit="negative sum over the classes of tanh of their scores",
        lower=None,
        upper=None,
        stored="float16",
        needs=(CLASS_SCORES,),
        formula="segunc.uncertainty:rejected_by_all",
        title="RbA",
    ),
    Score(
        name="knn",
        meaning="how far features are from all those of the training frames",
        source="Sun et al. 2022, arXiv 2204.06507",
        unit="1 - cosine with the nearest",
        lower=0,
        upper=2,
        stored="float16",
        needs=(FEATURE_DISTANCE,),
        colours=(0, 0.8),
        title="feature distance",
    ),
    Score(
        name="anomaly",
        meaning="how unlike all that is known",
        source="a sum of scores that was fitted on the model",
        unit="-log10 of the share of pixels of known scenes that score as high",
        lower=0,
        upper=None,
        stored="float16",
        needs=(SUM,),
        colours=(0, 6),
        threshold=3,
        measured_to=3,
        scale="3 = one in 1,000 known pixels scores as high, 4 = one in 10,000",
    ),
    Score(
        name="set-size",
        meaning="how many classes the prediction set of a pixel holds",
        source="Sadinle et al. 2019, arXiv 1609.00451",
        unit="classes",
        lower=1,
        upper=None,
        stored="float16",
        needs=("probabilities", SET_THRESHOLD),
        formula="segunc.uncertainty:set_size",
        colours=(1, 5),
        threshold=2,
        resized="evidence",
        title="size of the prediction set",
        scale="1 = the predicted class alone",
    ),
)
SCORES: Registry[Score] = Registry(
    "score", "segunc.scores", {score.name: score for score in _TABLE}
)
DEFAULT_SCORES = tuple(score.name for score in _TABLE[:8])
"""The scores that are written where none are named: those that need no further sum and nothing that
was fitted.
"""


def first_shown(names: Iterable[str]) -> str:
    """Return the score that pictures, pages and lists show where none is named: ``anomaly``, else
    ``entropy``, else the first of these; empty where there is none.
    """
    scores = tuple(names)
    for name in ("anomaly", "entropy"):
        if name in scores:
            return name
    return scores[0] if scores else ""


def title_of(name: str, capital: bool = True) -> str:
    """Return what readers call a score; of a score that is in no table, its name with spaces.

    Args:
        capital: whether the first letter is a capital; False is for the middle of a sentence.
    """
    title = SCORES[name].title if name in SCORES else ""
    title = title or name.replace("-", " ")
    return title[:1].upper() + title[1:] if capital else title


def scale_words(name: str, unit: str = "") -> str:
    """Return what the scale of a score means to a reader, else its meaning and unit; the unit alone
    of a score that is in no table.
    """
    if name not in SCORES:
        return unit
    score = SCORES[name]
    if score.scale:
        return score.scale
    return f"{score.meaning} ({unit})" if unit else score.meaning


def with_parts(names: Iterable[str], fitted: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of scores and, behind them, the parts of those that are sums, each once.

    Args:
        fitted: what was fitted on a model; it says what evidence it ``gives`` and, if that is a
            sum, its ``parts``.
    """
    scores = list(names)
    needs: set[str] = set()
    for name in scores:
        needs.update(SCORES[name].needs)
    for provider in fitted:
        if needs & provider.gives:
            scores += getattr(provider, "parts", ())
    return tuple(dict.fromkeys(scores))


FITTED_EVIDENCE: Mapping[str, frozenset[str]] = {
    "features": frozenset({FEATURE_DISTANCE}),
    "anomaly": frozenset({SUM}),
    "class_sets": frozenset({SET_THRESHOLD}),
}
"""The evidence that what is fitted on a model gives, by its name."""
CALIBRATED_MEAN = frozenset({"probabilities", "calibrated entropy"})
"""The evidence that a temperature of the mean over the draws changes."""
CALIBRATED_LOGITS = CALIBRATED_MEAN | {
    *("total entropy", "expected entropy", "mean energy", "temperature"),
}
"""The evidence that a temperature of the logits changes."""


def fitted_behind(
    names: Iterable[str], parts: Iterable[str] | None, *, calibrates: str = "logits"
) -> frozenset[str]:
    """Return which of what is fitted on a model has a part in scores: keys of
    :data:`FITTED_EVIDENCE`, and ``calibration``.

    Args:
        names: of the scores. One that is in no table may use all of it.
        parts: of the score that is a sum of others; None where they are not known, which may be
            any.
        calibrates: what a temperature acts on, ``logits`` or ``mean``.

    >>> sorted(fitted_behind(["entropy"], None))
    ['calibration']
    >>> sorted(fitted_behind(["anomaly"], ["deterministic-max-logit", "knn"]))
    ['anomaly', 'features']
    """
    everything = frozenset({*FITTED_EVIDENCE, "calibration"})
    needs: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in SCORES:
            return everything
        new = set(SCORES[name].needs) - needs
        needs |= new
        if SUM in new:
            if parts is None:
                needs |= {FEATURE_DISTANCE, *CALIBRATED_LOGITS}
            else:
                waiting += parts
    used = {what for what, evidence in FITTED_EVIDENCE.items() if evidence & needs}
    calibrated = CALIBRATED_MEAN if calibrates == "mean" else CALIBRATED_LOGITS
    if calibrated & needs:
        used.add("calibration")
    return frozenset(used)


SPREADS = frozenset({"epistemic", "logit-variance"})
"""Scores of how draws differ, which one draw leaves at 0."""
OF_DRAWS = SPREADS | {"aleatoric"}
"""Scores that say nothing of a deterministic network: spreads are 0, and aleatoric is entropy."""


def check_scores(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, each once, in their order.

    Raises:
        InputError: there is no score of a name, or no name at all.
    """
    chosen = tuple(SCORES[name].name for name in dict.fromkeys(names))
    if not chosen:
        raise InputError("no score is named", hint=f"name some of {', '.join(SCORES)}")
    return chosen


def stored_as_codes(name: str) -> bool:
    """Return whether there is a score of this name, and it is stored as codes."""
    return name in SCORES and SCORES[name].stored == "unit16"
