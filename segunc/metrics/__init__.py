"""Metrics from integer counts: pure functions of counts, and thin torchmetrics classes that gather the counts.

The functional core (numpy): ``counting`` and ``pixel_curves`` (pooled), ``per_image``, ``smiyc``, ``components``,
``wide_keys``, ``curve_points``, ``segmentation``, ``calibration``, ``probability_sums``, ``selective``, ``patches`` and
``histograms``. ``anomaly_metrics``, ``stateful``, ``stateful_calibration`` and ``stateful_selective`` hold the torchmetrics
classes. ``evaluator`` gathers everything that one run reports from ``parts``; ``resampling`` makes the intervals,
``report`` writes and prints, ``compare`` sets results side by side.
"""
