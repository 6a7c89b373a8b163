"""Speeds and sizes, each as a ratio inside one run, because machines are noisy. Run with `make bench`."""
