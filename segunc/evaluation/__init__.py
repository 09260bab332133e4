"""From labelled frames to ``metrics.json``, and results side by side.

``labelled_frame`` (one frame, checked), ``parts`` (the sections of a result), ``evaluator`` (their sums over a set),
``maps`` and ``models`` (where frames come from), ``resampling`` (intervals and paired tests), ``results``, ``compare`` and
``report`` (what is read and shown).
"""
