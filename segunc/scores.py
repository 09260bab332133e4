"""What a score is, in one table: unit, bounds, stored form, colours, and its formula over
*evidence* that the sampler gathers.

Nothing here imports torch: formulas are named by where they stand, and imported when they are first
taken.
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

FEATURE_DISTANCE = "feature distance"
SUM, SET_THRESHOLD = "sum of scores", "threshold of class sets"
# Beside the distance: a :data:`segunc.sampling.sampler.Nearest` for each frame.
NEAREST = "nearest features"
Source = Literal["draws", "base", "constant", "frame", "scores"]
"""Where the sampler has evidence from: sums over the draws, the base network, or what was fitted on
the model. The last is a constant, or maps that are made of the frame beside the network, or of the
maps of other scores at the frame's own size.
"""


@dataclass(frozen=True)
class Evidence:
    """One thing that formulas are given, at the size of the network's output."""

    meaning: str  # with its shape
    source: Source
    without: str = ""  # of what was fitted: what messages say of a model that lacks it
    method: str = ""  # of what was fitted: which ``segunc finetune --method`` makes it


# fmt: off
EVIDENCE: Registry[Evidence] = Registry("evidence", "segunc.evidence", {
    "probabilities": Evidence("[n, C, H, W] mean over the draws of p, calibrated where the model has a calibrator of the mean", "draws"),
    "calibrated entropy": Evidence("[n, H, W] entropy of these probabilities, share of ln C", "draws"),
    "total entropy": Evidence("[n, H, W] entropy of the mean p of the draws as they are, share of ln C", "draws"),
    "expected entropy": Evidence("[n, H, W] mean over the draws of the entropy of p, share of ln C", "draws"),
    "mean max logit": Evidence("[n, H, W] mean over the draws of the negative maximum of their logits", "draws"),
    "mean energy": Evidence("[n, H, W] mean over the draws of -T log-sum-exp of their logits / T", "draws"),
    "logit variance": Evidence("[n, H, W] variance of the logits over the draws, divisor S, mean over the classes", "draws"),
    "base logits": Evidence("[n, C, H, W] of the base network, float32", "base"),
    "temperature": Evidence("T > 0 of the model, a number", "base"),
    FEATURE_DISTANCE: Evidence("[n, H, W] of features to the nearest of the training set, 0..2", "frame",
                               "without features of its training set", "features"),
    SUM: Evidence("[n, H, W] of other scores", "scores",
                  "that does not say what it is a sum of", "anomaly"),
    SET_THRESHOLD: Evidence("lambda in 0..1, a number: p is at least 1 - lambda in the set of a pixel", "constant",
                            "without sets of classes", "class-sets"),
})
# fmt: on


@dataclass(frozen=True)
class Score:
    """A score of pixels, higher where the network is to be trusted less. InputError for codes of
    values that may leave 0..1, or no formula for several kinds of evidence.
    """

    name: str  # as the user writes it, and the name of its folder
    meaning: str  # in one line
    source: str  # of the definition
    unit: str  # of its values
    lower: float | None  # bound of its values; None is unbounded
    upper: float | None
    stored: Literal[
        "unit16", "float16"
    ]  # uint16 codes of values in 0..1 ((code / 65535)^2), or float16
    needs: tuple[str, ...]  # names of EVIDENCE
    # From what it needs, in that order, to its values [n, H, W]; or module:name where it stands;
    # None where that is the score.
    formula: Callable[..., Tensor] | str | None = None
    colours: tuple[float, float] | None = (
        None  # the two ends of the colour bar of all frames; None takes the set's
    )
    threshold: float | None = (
        None  # from which on a pixel belongs to a component; None counts none unless one is given
    )
    measured_to: float | None = (
        None  # up to where its fit has measured, if the maps do not say; beyond is extrapolated
    )
    resized: Literal["map", "evidence"] = (
        "map"  # resized (bilinearly) to the frame's size; evidence before the formula
    )
    title: str = ""  # what readers call it; where empty, its name with spaces
    scale: str = (
        ""  # what the ends of its scale mean to a reader; where empty, the meaning is shown
    )

    def __post_init__(self) -> None:
        inside = (
            self.lower is not None and self.upper is not None and 0 <= self.lower < self.upper <= 1
        )
        if self.stored == "unit16" and not inside:
            message = f"score '{self.name}' in {self.lower}..{self.upper} cannot be stored as codes of 0..1"
            raise InputError(message, hint="store it as float16")
        if not self.needs or (self.formula is None and len(self.needs) > 1):
            needs = ", ".join(self.needs) or "nothing"
            raise InputError(f"score '{self.name}' has no formula for what it needs: {needs}")

    @property
    def sources(self) -> frozenset[Source]:
        """Of what it needs; the maps of a score of the base network and constants alone are always
        resized as maps.
        """
        return frozenset(EVIDENCE[name].source for name in self.needs)

    def __call__(self, evidence: Mapping[str, Any]) -> Tensor:
        """Return its values ``[n, H, W]``, of any floating type."""
        formula: Any = self.formula
        if isinstance(formula, str):
            module, _, attribute = formula.partition(":")
            formula = getattr(importlib.import_module(module), attribute)
        values: Tensor = (
            formula(*(evidence[name] for name in self.needs))
            if formula
            else evidence[self.needs[0]]
        )
        return values


def _share(
    name: str,
    meaning: str,
    source: str,
    unit: str,
    needs: tuple[str, ...],
    formula: Any = None,
    **other: Any,
) -> Score:
    """A score in 0..1."""
    fields: dict[str, Any] = {"colours": (0, 1), "threshold": 0.5} | other
    return Score(name, meaning, source, unit, 0, 1, "unit16", needs, formula, **fields)


_LN_C, _PASS = "share of ln C", ("base logits", "temperature")
_TORN, _NOT_HIGHEST = (
    "0 = certain, 1 = all classes equally likely",
    "0 = certain; 1 less the highest probability",
)
# fmt: off
_TABLE = (
    # The confidence must be that of the class that is predicted at the frame's size.
    _share("msp", "how unlikely the most probable class is", "Hendrycks & Gimpel 2017, arXiv 1610.02136",
           "1 - max mean probability", ("probabilities",), "segunc.uncertainty:max_softmax", resized="evidence", title="1 − confidence",
           scale=_NOT_HIGHEST),
    _share("entropy", "total uncertainty: entropy of the mean probabilities", "Depeweg et al. 2018, arXiv 1710.07283",
           _LN_C, ("calibrated entropy",), scale=_TORN),
    _share("aleatoric", "expected entropy of one draw", "Depeweg et al. 2018, arXiv 1710.07283",
           _LN_C, ("expected entropy",), title="aleatoric (data)", scale="0 = every draw is certain, 1 = every draw is torn"),
    # With usual alphas it rarely passes a tenth of ln C, a strong disagreement; on 0..1 it would
    # look empty.
    _share("epistemic", "mutual information of class and parameters", "Houlsby et al. 2011, arXiv 1112.5745",
           _LN_C, ("total entropy", "expected entropy"), lambda total, expected: (total - expected).clamp_min_(0.0),
           colours=(0, 0.1), threshold=0.1, resized="evidence",
           title="epistemic (model)", scale="0 = all draws agree; more: they contradict each other"),
    _share("deterministic-msp", "msp of the base network", "Hendrycks & Gimpel 2017, arXiv 1610.02136",
           "1 - max probability", _PASS, "segunc.uncertainty:max_softmax_of_logits", title="1 − confidence of the base", scale=_NOT_HIGHEST),
    _share("deterministic-entropy", "entropy of the base network's probabilities", "Shannon 1948",
           _LN_C, _PASS, "segunc.uncertainty:entropy_share_of_logits", title="entropy of the base", scale=_TORN),
    Score("deterministic-max-logit", "how low the largest logit of the base network is", "Hendrycks et al. 2022, arXiv 1911.11132",
          "negative max logit", None, None, "float16", ("base logits",), lambda logits: -logits.float().amax(1), title="max logit of the base"),
    Score("deterministic-energy", "free energy of the base network's logits", "Liu et al. 2020, arXiv 2010.03759",
          "-T log-sum-exp of the logits / T", None, None, "float16", ("base logits", "temperature"), "segunc.uncertainty:energy",
          title="energy of the base"),
    Score("mean-max-logit", "how low the largest logit of a draw is, in the mean", "Hendrycks et al. 2022, arXiv 1911.11132",
          "negative max logit, mean over the draws", None, None, "float16", ("mean max logit",)),
    Score("mean-energy", "free energy of the logits of a draw, in the mean", "Liu et al. 2020, arXiv 2010.03759",
          "-T log-sum-exp of the logits / T, mean over the draws", None, None, "float16", ("mean energy",)),
    Score("logit-variance", "how much the logits vary over the draws", "Gal 2016, thesis, section 3.3",
          "variance over the draws (divisor S) of the logits, mean over the classes", 0, None, "float16", ("logit variance",)),
    Score("rba", "how little any class claims a pixel", "Nayal et al. 2023, arXiv 2211.14293",
          "negative sum over the classes of tanh of their scores", None, None, "float16",
          ("base logits",), lambda logits: -logits.float().tanh().sum(1), title="RbA"),
    Score("knn", "how far features are from all those of the training frames", "Sun et al. 2022, arXiv 2204.06507",
          "1 - cosine with the nearest", 0, 2, "float16", (FEATURE_DISTANCE,), colours=(0, 0.8), title="feature distance"),
    Score("anomaly", "how unlike all that is known", "a sum of scores that was fitted on the model",
          "-log10 of the share of pixels of known scenes that score as high", 0, None, "float16", (SUM,),
          colours=(0, 6), threshold=3, measured_to=3,
          scale="x = one in 10^x known pixels scores as high"),
    # A set that is empty holds the predicted class alone, which is in every other set already.
    Score("set-size", "how many classes a pixel's set with a promise holds", "Sadinle et al. 2019, arXiv 1609.00451", "classes", 1, None,
          "float16", ("probabilities", SET_THRESHOLD), lambda p, threshold: ((1.0 - p.float()) <= threshold).sum(1).clamp_min(1).float(),
          colours=(1, 5), threshold=2, resized="evidence", title="size of the class set", scale="1 = the predicted class alone"),
)
# fmt: on
SCORES: Registry[Score] = Registry(
    "score", "segunc.scores", {score.name: score for score in _TABLE}
)
DEFAULT_SCORES = tuple(score.name for score in _TABLE[:8])
"""Written where nobody names any: those that need no further sum and no further statistics."""


def first_shown(names: Iterable[str]) -> str:
    """Return the one of some scores that pictures, pages and lists show where nobody names one:
    ``anomaly``, else ``entropy``, else the first; empty where there is none.
    """
    scores = tuple(names)
    return next((name for name in ("anomaly", "entropy", *scores) if name in scores), "")


def title_of(name: str, capital: bool = True) -> str:
    """Return what readers call a score, without a ``capital`` within a sentence; of one that no
    table has its name with spaces.
    """
    title = (SCORES[name].title if name in SCORES else "") or name.replace("-", " ")
    return title[:1].upper() + title[1:] if capital else title


def scale_words(name: str, unit: str = "") -> str:
    """Return what the scale of a score means to a reader, else its meaning and unit; the unit alone
    where no table has the score.
    """
    if name not in SCORES:
        return unit
    return SCORES[name].scale or SCORES[name].meaning + (f" ({unit})" if unit else "")


def with_parts(names: Iterable[str], fitted: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of scores and, behind them, the parts of those that are sums; what was
    fitted on a model says what it ``gives`` and, if that is a sum, its ``parts``.
    """
    scores = tuple(names)
    needs = {need for name in scores for need in SCORES[name].needs}
    parts = [
        part
        for provider in fitted
        if needs & provider.gives
        for part in getattr(provider, "parts", ())
    ]
    return tuple(dict.fromkeys([*scores, *parts]))


SPREADS = frozenset({"epistemic", "logit-variance"})
"""Scores of how draws differ, which one draw leaves at 0."""
OF_DRAWS = SPREADS | {"aleatoric"}
"""Scores that say nothing of a deterministic network: these are 0, and aleatoric equals entropy."""


def check_scores(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, each once, in the order given; InputError for a name that is no score, or
    none at all.
    """
    chosen = tuple(SCORES[name].name for name in dict.fromkeys(names))
    if not chosen:
        raise InputError("no score is named", hint=f"name some of {', '.join(SCORES)}")
    return chosen


def stored_as_codes(name: str) -> bool:
    """Return whether this tool stores a score of this name as codes; False for a name that no score
    has.
    """
    return name in SCORES and SCORES[name].stored == "unit16"
