"""Attacks on the real pipeline: how much of the claimed ε somebody who tries can really see.

Every attack asks the real client for real messages, on two datasets of its own making that differ in one record, and
hands numbers to `accountant.empirical`. What a run claims is read from the ledger that its desk wrote for the same
requests. A new channel is a class with the members of `Attack` (attack.py) and a line in `ATTACKS` (audit.py).
"""
