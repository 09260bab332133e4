"""One file a posterior: its state and draws, its settings, how it is fitted, and its entry in
``methods.py``.
"""
