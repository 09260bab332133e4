"""Scores of other works, and the evidence that they need. Nothing here imports torch."""

from __future__ import annotations

from segunc.scores import Evidence, Score, of_features

MAX_LOGIT_STATISTICS = "max-logit statistics"
MAHALANOBIS, RELATIVE_MAHALANOBIS = "mahalanobis distance", "relative mahalanobis distance"
LOG_DENSITY, VIRTUAL_LOGIT = "negative log density", "virtual logit"
CLIPPED_ENERGY, SCALED_ENERGY = "clipped energy", "scaled energy"

# fmt: off
max_logit_statistics = Evidence(
    "of the training set, see segunc.baselines.max_logit", "constant", "without statistics of its training set", "standardized-max-logit")
mahalanobis_distance = of_features(
    "of features to the nearest class of the training set, standardised, see segunc.baselines.densities")
relative_mahalanobis_distance = of_features("the same less that to one Gaussian of all classes, standardised")
negative_log_density = of_features("of features, minus that of a Gaussian mixture of the training set, standardised")
virtual_logit = of_features("of the residual of the last layer's input, less log-sum-exp, see segunc.baselines.head")
clipped_energy = of_features("-T log-sum-exp of the logits / T of clipped activations")
scaled_energy = of_features("the same of scaled activations")

standardized_max_logit = Score(
    "standardized-max-logit", "how low the largest logit is for its class", "Jung et al. 2021, arXiv 2107.11264",
    "negative max logit in standard deviations of its class", None, None, "float16",
    ("base logits", MAX_LOGIT_STATISTICS), "segunc.baselines.max_logit:standardized_max_logit")
mahalanobis = Score(
    "mahalanobis", "how far features are from all classes of the training frames", "Lee et al. 2018, arXiv 1807.03888",
    "standard deviations over training features", None, None, "float16", (MAHALANOBIS,), title="Mahalanobis distance")
relative_mahalanobis = Score(
    "relative-mahalanobis", "the same, less how far they are from all training features", "Ren et al. 2021, arXiv 2106.09022",
    "standard deviations over training features", None, None, "float16", (RELATIVE_MAHALANOBIS,), title="relative Mahalanobis distance")
gmm = Score(
    "gmm", "how rare features are, by one Gaussian a class", "Mukhoti et al. 2023, arXiv 2102.11582",
    "standard deviations over training features", None, None, "float16", (LOG_DENSITY,), title="Gaussian mixture of features")
vim = Score(
    "vim", "how much of the last features the training frames do not use", "Wang et al. 2022, arXiv 2203.10807",
    "virtual logit - log-sum-exp of the logits", None, None, "float16", (VIRTUAL_LOGIT,), title="ViM")
react_energy = Score(
    "react-energy", "free energy of the base network with clipped activations", "Sun et al. 2021, arXiv 2111.12797",
    "-T log-sum-exp of the logits / T", None, None, "float16", (CLIPPED_ENERGY,), title="ReAct energy")
scale_energy = Score(
    "scale-energy", "free energy of the base network with scaled activations", "Xu et al. 2024, arXiv 2310.00227",
    "-T log-sum-exp of the logits / T", None, None, "float16", (SCALED_ENERGY,), title="SCALE energy")
