"""Tests of the places where clients live."""
