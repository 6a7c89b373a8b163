"""Secure aggregation of model updates: the server adds what it cannot read.

keys = new_keys("bfv")
code = FixedPoint(range=1.0, weight_sum=1.0, contributors=2, modulus=MODULI["bfv"])
client, server = aggregators("bfv", keys, fixed_point=code)
total = server.add([client.contribute(a, 0.25, client=0), client.contribute(b, 0.75, client=1)])
client.open(total)  # 0.25 a + 0.75 b, to within code.max_error
"""

from privfair.secure_aggregation.aggregators import (
    ClientAggregator,
    ServerAggregator,
    Summed,
    Sums,
    Totals,
    aggregators,
)
from privfair.secure_aggregation.base import MODULI, ClientKeys, FixedPoint, ServerKeys, WholeNumbers
from privfair.secure_aggregation.ciphertext import VERSION, Forged, TooNoisy, require_resumable
from privfair.secure_aggregation.keys import SINGLE_KEY_WARNING, KeyPair, load_client, load_server, new_keys, plain_keys

__all__ = [
    "MODULI",
    "SINGLE_KEY_WARNING",
    "VERSION",
    "ClientAggregator",
    "ClientKeys",
    "FixedPoint",
    "Forged",
    "KeyPair",
    "ServerAggregator",
    "ServerKeys",
    "Summed",
    "Sums",
    "TooNoisy",
    "Totals",
    "WholeNumbers",
    "aggregators",
    "load_client",
    "load_server",
    "new_keys",
    "plain_keys",
    "require_resumable",
]
