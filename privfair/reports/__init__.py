"""Figures and files for people."""
