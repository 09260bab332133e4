"""Counts and the numbers that follow from them: pure functions of arrays that know no map, model or file.

``counting`` (16-bit keys, their exact curves, pooled and per-image numbers), ``smiyc``, ``components``, ``segmentation``,
``calibration``, ``selective``; ``chains`` (convergence of Markov chains) stands apart.
"""
