"""Data sets with their layouts and label rules, transforms and the data module. A sample carries
class label and anomaly label separately; either may lack.
"""
