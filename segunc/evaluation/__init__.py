"""From labelled frames to ``metrics.json``, and results side by side.

A frame is counted by all parts or by none, so scores are compared over the same pixels; one that cannot be counted is named
in ``left_out`` and the run goes on. Reals that a frame contributes (a log loss, the AUROC of an image) are rounded once to a
multiple of a power of two; from there on it is integer addition, so shards merge to the bit. Replicates keep counts by 12 bits
of the key instead of 16; their numbers are moved by the difference that this makes over all frames. ``smiyc`` is the one state
without a fixed size (a sorted table of edges); components need the best-F1 threshold of the whole set, hence a second pass.
"""
