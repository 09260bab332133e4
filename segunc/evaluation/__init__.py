"""From labelled frames to ``metrics.json``, and results side by side.

``labelled_frame`` (one frame, checked), ``parts`` (the sections of a result), ``evaluator`` (their sums over a set),
``maps`` and ``models`` (where frames come from), ``resampling`` (intervals and paired tests), ``results``, ``compare`` and
``report`` (what is read and shown).

A frame is counted by all parts or by none, so scores are compared over the same pixels; one that cannot be counted is named in
``left_out`` and the run goes on. Reals that a frame contributes (a log loss, the AUROC of an image) are rounded once to a multiple of a
power of two; from there on it is integer addition, so shards merge to the bit. Intervals come in the same pass: a Poisson bootstrap
gives each resampled unit a weight for each replicate, a function of (seed, unit name) alone, and replicate r of two results over the
same units is paired. Replicates keep counts by 12 bits of the key instead of 16; their numbers are moved by the difference that this
makes over all frames. ``smiyc`` is the one state without a fixed size (a sorted table of float64 edges, NumPy 1's type rules, because
the public boards were computed with it); components need the best-F1 threshold of the whole set and so take a second pass.
"""
