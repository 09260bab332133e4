"""Studies: methods times seeds times evaluations from one YAML file, each cell made once, and what
they say together.

A cell calls the package's own ``finetune`` and ``evaluate`` with settings that its record keeps; a
finished cell of other settings is refused. The mean over seeds is itself an evaluation result, so
that intervals and paired differences are those of one run. Candidates are ranked on the split that
may select (``selection``): val, or the frames held out of training where every frame of val holds
the anomaly.
"""
