"""Data sets with their layouts and label rules, the toy road scenes, transforms and the data module."""
