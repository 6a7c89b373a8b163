"""Data for federated training: built-in datasets, and anybody's CSV file."""

from privfair.datasets.columns import Encoder
from privfair.datasets.downloads import DatasetInfo
from privfair.datasets.records import ClientData, Federation, Records, Schema, SensitiveAttribute
from privfair.datasets.registry import describe, load

__all__ = [
    "ClientData",
    "DatasetInfo",
    "Encoder",
    "Federation",
    "Records",
    "Schema",
    "SensitiveAttribute",
    "describe",
    "load",
]
