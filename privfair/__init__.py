"""Federated training that is fair over all the data, with its privacy cost written down."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privfair.api import Result, TrainedModel, load, train
    from privfair.config import Config

__version__ = version("privfair")
__all__ = ["Config", "Result", "TrainedModel", "load", "train"]

_HOME = {"Config": "privfair.config"}  # all others: privfair.api, which imports torch, so not before it is needed


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'privfair' has no attribute {name!r}")
    return getattr(import_module(_HOME.get(name, "privfair.api")), name)
