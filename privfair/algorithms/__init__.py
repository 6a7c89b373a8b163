"""Fairness tracking and every baseline, on the same hooks."""
