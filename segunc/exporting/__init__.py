"""One file that gives the maps of a frame without this package: traced, written, and compared with
the sampler.
"""
