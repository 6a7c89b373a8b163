"""Federated training that is fair over all the data, with its privacy cost written down."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privfair.api import Result, train
    from privfair.config import Config
    from privfair.runs.folder import TrainedModel, load

__version__ = version("privfair")
__all__ = ["Config", "Result", "TrainedModel", "load", "train"]

_HOME = {  # where each name lives; not imported before it is needed, because torch is behind most of them
    "Config": "privfair.config",
    "Result": "privfair.api",
    "TrainedModel": "privfair.runs.folder",
    "load": "privfair.runs.folder",
    "train": "privfair.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'privfair' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
