"""Metrics from integer counts: pure functions of counts, and thin torchmetrics classes that gather the counts.

``pixel_curves``, ``segmentation``, ``calibration``, ``probability_sums``, ``selective``, ``patches`` and ``histograms``
are the functional core (numpy); ``stateful``, ``stateful_calibration`` and ``stateful_selective`` hold the torchmetrics
classes; ``evaluator`` gathers everything that one run reports; ``report`` writes and prints it.
"""
