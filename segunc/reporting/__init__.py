"""A report of a model for those who release it: ``report.json`` from results on disk, and one page
made from it alone.
"""
