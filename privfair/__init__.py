"""Federated training that is fair over all the data, with its privacy cost written down."""

from importlib.metadata import version

__version__ = version("privfair")
