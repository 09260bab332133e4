"""The fault campaign: what becomes of runs that are killed, of files that are damaged, of resources that fail, of bits that flip.

Each part finds failures, with what runs each of them again; ``python -m tools.fault_campaign`` runs all parts and prints a table.
"""
