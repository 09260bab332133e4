"""Data sets with their layouts and label rules, transforms and the data module.

A sample carries class label and anomaly label separately; either may lack. A class that is declared the anomaly leaves the label map,
and frames that hold it leave training altogether (``datasets``). Images can be corrupted on their way to a network, as a function of the
frame's name and the strength (``corruptions``).
"""
