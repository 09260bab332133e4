"""Norm sites, conversion and affine draws over one network, the prior on them, and a posterior on
disk.
"""
