"""Attacks on the real pipeline: how much of the claimed ε an attacker really sees.

Every attack asks the real client for real messages, on two made-up datasets that differ in one record, and passes
numbers to `accountant.empirical`. The claim is read from the ledger that was written for the same requests. A new
channel is a class with the members of `Attack` (attack.py) and a line in `ATTACKS` (audit.py).
"""
