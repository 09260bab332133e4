"""One file a posterior: its state and draws, its settings, how it is fitted, and its :class:`~segunc.posteriors.methods.Method`.

``methods.py`` names them all, also those of other packages; ``files.py`` reads and copies model folders; ``fitting.py`` holds what fits
share. A posterior's training goes through :class:`segunc.training.finetune_run.FinetuneRun`.
"""
