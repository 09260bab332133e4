"""Metrics from integer counts: pure functions of counts, and thin torchmetrics classes that gather the counts.

``pixel_curves``, ``segmentation`` and ``calibration`` are the functional core (numpy); ``stateful`` holds the
torchmetrics classes; ``evaluator`` gathers everything that one run reports; ``report`` writes and prints it.
"""
