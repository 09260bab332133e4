"""Normalisation layers that draw, their conversion, affine draws over one network, and the prior."""
