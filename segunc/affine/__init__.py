"""Norm sites, conversion, affine draws, and one file for each posterior."""
