"""What a score is, in one table: unit, bounds, stored form, colours, and its formula over what the sampler has of a frame.

A score is made of *evidence*, named things that the sampler gathers (:data:`EVIDENCE`); it keeps the sums that the scores asked
for need. Nothing here imports torch: formulas are named by where they stand, and imported when they are first taken.
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

MAX_LOGIT_STATISTICS = "max-logit statistics"
FEATURE_DISTANCE = "feature distance"
MAHALANOBIS, RELATIVE_MAHALANOBIS, LOG_DENSITY = (
    "mahalanobis distance",
    "relative mahalanobis distance",
    "negative log density",
)
VIRTUAL_LOGIT, CLIPPED_ENERGY, SCALED_ENERGY = "virtual logit", "clipped energy", "scaled energy"
SUM = "sum of scores"
EVIDENCE = {
    "probabilities": "[n, C, H, W] mean over the draws of p, calibrated where the model has a calibrator of the mean",
    "calibrated entropy": "[n, H, W] entropy of these probabilities, share of ln C",
    "total entropy": "[n, H, W] entropy of the mean p of the draws as they are, share of ln C",
    "expected entropy": "[n, H, W] mean over the draws of the entropy of p, share of ln C",
    "variance": "[n, H, W] variance of p_c over the draws, mean over the classes",
    "votes": "[n, C, H, W] share of the draws whose most probable class it is",
    "mean max logit": "[n, H, W] mean over the draws of the negative maximum of their scores (see base scores)",
    "mean energy": "[n, H, W] mean over the draws of -T log-sum-exp of their scores / T",
    "energy spread": "[n, H, W] standard deviation of that energy over the draws, divisor S",
    "logit variance": "[n, H, W] variance of the scores over the draws, divisor S, mean over the classes",
    "covariance": "[n, H, W] sum over the classes of cov(p_c, ln p_c) over the draws, divisor S - 1, in nats",
    "base logits": "[n, C, H, W] of the base network, float32",
    "base scores": "[n, C, H, W] the same, but of mask classification the scores whose logarithms its logits are",
    "temperature": "T > 0 of the model, a number",
    MAX_LOGIT_STATISTICS: "of the training set, see segunc.uncertainty.ClassMaxLogits",
    FEATURE_DISTANCE: "[n, H, W] of features to the nearest of the training set, 0..2, see segunc.sampling.density",
    MAHALANOBIS: "[n, H, W] of features to the nearest class of the training set, standardised, see segunc.sampling.gaussians",
    RELATIVE_MAHALANOBIS: "[n, H, W] the same less that to one Gaussian of all classes, standardised",
    LOG_DENSITY: "[n, H, W] of features, minus that of a Gaussian mixture of the training set, standardised",
    VIRTUAL_LOGIT: "[n, H, W] of the residual of the last layer's input, less log-sum-exp, see segunc.sampling.head",
    CLIPPED_ENERGY: "[n, H, W] -T log-sum-exp of the logits / T of clipped activations",
    SCALED_ENERGY: "[n, H, W] the same of scaled activations",
    SUM: "[n, H, W] of other scores of the frame, at its own size, see segunc.posteriors.anomaly",
}
"""What formulas are given, at the size of the network's output."""
MEANS = frozenset({"probabilities", "calibrated entropy", "total entropy", "expected entropy"})
"""Evidence that can be blended over tiles and averaged along a video; scores that need nothing else follow from it."""
FEATURES = frozenset(
    {FEATURE_DISTANCE, MAHALANOBIS, RELATIVE_MAHALANOBIS, LOG_DENSITY, VIRTUAL_LOGIT, CLIPPED_ENERGY, SCALED_ENERGY}
)
"""Evidence that no draw gives, of features that were fitted on the model."""
BASE = frozenset({"base logits", "base scores", "temperature", MAX_LOGIT_STATISTICS})
"""Evidence of the base network alone; the maps of scores that need nothing else are always resized as maps."""


@dataclass(frozen=True)
class Score:
    """A score of pixels, higher where the network is to be trusted less.

    Attributes:
        name: as the user writes it, and the name of its folder.
        meaning, source, unit: in one line, of the definition, of its values.
        lower, upper: bounds of its values; None is unbounded.
        stored: ``unit16``, uint16 codes of values in 0..1 (``(code / 65535)^2``), or ``float16``.
        needs: names of :data:`EVIDENCE`.
        formula: from what it needs, in that order, to its values ``[n, H, W]``; or ``module:name`` where it stands; None
            where the one thing that it needs is the score.
        colours: values at the two ends of the colour bar, the same for all frames; None takes them from the whole set.
        threshold: from which value on a pixel belongs to a component; None counts none unless the user gives one.
        resized: what is resized (bilinearly) to the frame's own size: the ``map``, or the ``evidence`` before the formula.

    Raises:
        InputError: codes for values that may leave 0..1, or no formula for several kinds of evidence.
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
    resized: Literal["map", "evidence"] = "map"

    def __post_init__(self) -> None:
        inside = self.lower is not None and self.upper is not None and 0 <= self.lower < self.upper <= 1
        if self.stored == "unit16" and not inside:
            given = f"score '{self.name}' in {self.lower}..{self.upper} as codes"
            raise InputError(given, "bounds within 0..1", "float16")
        if not self.needs or (self.formula is None and len(self.needs) > 1):
            raise InputError(f"score '{self.name}' of {self.needs} without a formula", "what to make of them")

    def __call__(self, evidence: Mapping[str, Any]) -> Tensor:
        """Its values ``[n, H, W]``, of any floating type."""
        formula: Any = self.formula
        if isinstance(formula, str):
            module, _, attribute = formula.partition(":")
            formula = getattr(importlib.import_module(module), attribute)
        values: Tensor = formula(*(evidence[name] for name in self.needs)) if formula else evidence[self.needs[0]]
        return values


def _share(
    name: str, meaning: str, source: str, unit: str, needs: tuple[str, ...], formula: str | None = None, **other: Any
) -> Score:
    """A score in 0..1 with a formula of :mod:`segunc.uncertainty`."""
    formula = formula and f"segunc.uncertainty:{formula}"
    given: dict[str, Any] = {"colours": (0, 1), "threshold": 0.5} | other
    return Score(name, meaning, source, unit, 0, 1, "unit16", needs, formula, **given)


_LN_C, _PASS = "share of ln C", ("base logits", "temperature")
# fmt: off
_TABLE = (
    # The confidence must be that of the class that is predicted at the frame's size.
    _share("msp", "how unlikely the most probable class is", "Hendrycks & Gimpel 2017, arXiv 1610.02136",
           "1 - max mean probability", ("probabilities",), "max_softmax", resized="evidence"),
    _share("entropy", "total uncertainty: entropy of the mean probabilities", "Depeweg et al. 2018, arXiv 1710.07283",
           _LN_C, ("calibrated entropy",)),
    _share("aleatoric", "expected entropy of one draw", "Depeweg et al. 2018, arXiv 1710.07283",
           _LN_C, ("expected entropy",)),
    # With the alphas that validation selects it rarely passes a tenth of ln C, a strong disagreement; on 0..1 it would look empty.
    _share("epistemic", "mutual information of class and parameters", "Houlsby et al. 2011, arXiv 1112.5745",
           _LN_C, ("total entropy", "expected entropy"), "mutual_information",
           colours=(0, 0.1), threshold=0.1, resized="evidence"),
    _share("deterministic-msp", "msp of the base network", "Hendrycks & Gimpel 2017, arXiv 1610.02136",
           "1 - max probability", _PASS, "max_softmax_of_logits"),
    _share("deterministic-entropy", "entropy of the base network's probabilities", "Shannon 1948",
           _LN_C, _PASS, "entropy_share_of_logits"),
    Score("deterministic-max-logit", "how low the largest logit of the base network is", "Hendrycks et al. 2022, arXiv 1911.11132",
          "negative max logit", None, None, "float16", ("base scores",), "segunc.uncertainty:max_logit"),
    Score("deterministic-energy", "free energy of the base network's logits", "Liu et al. 2020, arXiv 2010.03759",
          "-T log-sum-exp of the logits / T", None, None, "float16", ("base scores", "temperature"), "segunc.uncertainty:energy"),
    # Draws split evenly between two of 19 classes have a variance of 0.026.
    _share("variance", "how much the probabilities vary over the draws", "Kendall et al. 2015, arXiv 1511.02680",
           "variance over the draws, mean over the classes", ("variance",), colours=(0, 0.02), threshold=0.05),
    _share("variation-ratio", "how many draws predict another class than most do", "Gal 2016, thesis, section 3.3.1",
           "share of the draws that do not vote for the modal class", ("votes",), "outvoted_share"),
    Score("expected-pairwise-kl", "mean divergence of two draws", "Malinin & Gales 2021, arXiv 2002.07650",
          "nats", 0, None, "float16", ("covariance",)),
    Score("mean-max-logit", "how low the largest logit of a draw is, in the mean", "Hendrycks et al. 2022, arXiv 1911.11132",
          "negative max logit, mean over the draws", None, None, "float16", ("mean max logit",)),
    Score("mean-energy", "free energy of the logits of a draw, in the mean", "Liu et al. 2020, arXiv 2010.03759",
          "-T log-sum-exp of the logits / T, mean over the draws", None, None, "float16", ("mean energy",)),
    # The one direction that the softmax takes out of the logits, a constant added to all of them, moves these two alone.
    Score("energy-spread", "how much the free energy varies over the draws", "standard deviation of Liu et al.'s energy",
          "standard deviation over the draws (divisor S) of the energy", 0, None, "float16", ("energy spread",)),
    Score("logit-variance", "how much the logits vary over the draws", "Gal 2016, thesis, section 3.3",
          "variance over the draws (divisor S) of the logits, mean over the classes", 0, None, "float16", ("logit variance",)),
    Score("rba", "how little any class claims a pixel", "Nayal et al. 2023, arXiv 2211.14293",
          "negative sum over the classes of tanh of their scores", None, None, "float16",
          ("base scores",), "segunc.uncertainty:rejected_by_all"),
    Score("knn", "how far features are from all those of the training frames", "Sun et al. 2022, arXiv 2204.06507",
          "1 - cosine with the nearest", 0, 2, "float16", (FEATURE_DISTANCE,), colours=(0, 0.8)),
    Score("mahalanobis", "how far features are from all classes of the training frames", "Lee et al. 2018, arXiv 1807.03888",
          "standard deviations over training features", None, None, "float16", (MAHALANOBIS,)),
    Score("relative-mahalanobis", "the same, less how far they are from all training features", "Ren et al. 2021, arXiv 2106.09022",
          "standard deviations over training features", None, None, "float16", (RELATIVE_MAHALANOBIS,)),
    Score("gmm", "how rare features are, by one Gaussian a class", "Mukhoti et al. 2023, arXiv 2102.11582",
          "standard deviations over training features", None, None, "float16", (LOG_DENSITY,)),
    Score("vim", "how much of the last features the training frames do not use", "Wang et al. 2022, arXiv 2203.10807",
          "virtual logit - log-sum-exp of the logits", None, None, "float16", (VIRTUAL_LOGIT,)),
    Score("react-energy", "free energy of the base network with clipped activations", "Sun et al. 2021, arXiv 2111.12797",
          "-T log-sum-exp of the logits / T", None, None, "float16", (CLIPPED_ENERGY,)),
    Score("scale-energy", "free energy of the base network with scaled activations", "Xu et al. 2024, arXiv 2310.00227",
          "-T log-sum-exp of the logits / T", None, None, "float16", (SCALED_ENERGY,)),
    Score("anomaly", "how unlike all that is known", "a sum of scores that was fitted on the model, see segunc.posteriors.anomaly",
          "-log10 of the share of pixels of known scenes that score as high", 0, None, "float16", (SUM,),
          colours=(0, 6), threshold=3),
    Score("standardized-max-logit", "how low the largest logit is for its class", "Jung et al. 2021, arXiv 2107.11264",
          "negative max logit in standard deviations of its class", None, None, "float16",
          ("base logits", MAX_LOGIT_STATISTICS), "segunc.uncertainty:standardized_max_logit"),
)
# fmt: on
SCORES: Registry[Score] = Registry("score", "segunc.scores", {score.name: score for score in _TABLE})
DEFAULT_SCORES = tuple(score.name for score in _TABLE[:8])
"""Written where nobody names any: those that need no further sum and no further statistics."""
SHOWN_FIRST = ("anomaly", "entropy")


def first_shown(names: Iterable[str]) -> str:
    """Of the scores that are there the one that pictures, pages and lists show where nobody names one: ``anomaly``, else
    ``entropy``, else the first; empty where there is none."""
    there = tuple(names)
    return next((name for name in (*SHOWN_FIRST, *there) if name in there), "")


SPREADS = frozenset(
    {"epistemic", "variance", "variation-ratio", "expected-pairwise-kl", "energy-spread", "logit-variance"}
)
"""Scores of how draws differ, which one draw leaves at 0."""


def check_scores(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, each once, in the order given; InputError for a name that is no score, or none at all."""
    chosen = tuple(dict.fromkeys(names))
    if not chosen:
        raise InputError("no score is named", f"some of {', '.join(SCORES)}", "name at least one")
    for name in chosen:
        SCORES[name]
    return chosen


def stored_as_codes(name: str) -> bool:
    """Whether this tool stores a score of this name as codes; False for a name that no score has."""
    return name in SCORES and SCORES[name].stored == "unit16"
