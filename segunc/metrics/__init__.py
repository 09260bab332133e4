"""Metrics from integer counts: pure functions of counts, and thin torchmetrics classes that gather the counts.

The functional core (numpy): ``counting`` and ``pixel_curves`` (pooled), ``per_image``, ``smiyc``, ``components``,
``wide_keys``, ``curve_points``, ``segmentation`` and ``calibration``. ``anomaly_metrics`` and ``stateful`` hold the
torchmetrics classes; ``evaluator`` gathers everything that one run reports; ``report`` writes and prints it.
"""
