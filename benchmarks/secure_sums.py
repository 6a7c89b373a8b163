"""Masked sums of 10 holders × 1,000,000 parameters, the vectors of 3 of whom are lost (7 must be there).

One sum from values to values: coding and check values, masks, messages, the server's addition, unmasking, and the
opening at each of the ten holders. Processor time of one process that plays all parts, beside the same sum under BFV
without masks. Keys of a block serve 16 sums and are prepared before; their time is shown by itself.

Flower's SecAgg+ sends 8.07 bytes a parameter at its defaults: weights quantised to 22 bits travel as int64, with
shares beside them. The same steps of its library (quantise, masks for every neighbour and for itself, addition) are
timed here where flwr is installed: without its messages, without shares, and without taking masks off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.measure import Result
from privfair.federated.messages import sum_number
from privfair.federated.secure_sums import MaskingDesk, SecureSums
from privfair.secure_aggregation import MODULI, FixedPoint, KeyPair, aggregators, new_keys
from privfair.secure_aggregation.masked import MaskedClientAggregator, MaskedServerAggregator, Masking
from privfair.secure_aggregation.masking import MaskingHolder
from privfair.secure_aggregation.masks import Cohort, Federation

HOLDERS, PARAMETERS, DROPPED, SMALLEST, COLLUDERS = 10, 1_000_000, 3, 7, 2
REPEATS = 3
CODE = FixedPoint(1.0, 1.0, HOLDERS, MODULI["bfv"])


class Sum:
    """The parties of masked sums, and one sum after the other."""

    def __init__(self, keys: KeyPair) -> None:
        """A block of sums is prepared."""
        identities = [Ed25519PrivateKey.generate() for _ in range(HOLDERS)]
        public = tuple(key.public_key().public_bytes_raw() for key in identities)
        about = Federation(Cohort(HOLDERS, COLLUDERS, SMALLEST), public, "benchmark")
        masking = Masking(about, {k: MaskingHolder(about, k, key) for k, key in enumerate(identities)})
        self.client = MaskedClientAggregator(
            keys.client,
            CODE,
            masking.holders,
            lambda r: sum_number("updates", r, 100),
            run="benchmark",
            channel="updates",
        )
        self.sums = SecureSums({"updates": MaskedServerAggregator(keys.server, CODE)}, 100, about)
        self.desks = {k: MaskingDesk(holder) for k, holder in masking.holders.items()}
        self.size = 0
        start = time.process_time()
        self.sums.ready("updates", 0, range(HOLDERS), self.ask)
        self.prepared = time.process_time() - start

    def ask(self, clients: Sequence[int], request: Callable[[int], Any]) -> list[Any]:
        """What the holders answer."""
        return [self.desks[k].answer(request(k)) for k in clients]

    def whole(self, deltas: list[np.ndarray], number: int) -> None:
        """One sum, opened by everybody."""
        sent = {
            k: self.client.contribute(deltas[k], 1 / HOLDERS, client=k, number=number + 1, round_number=number)
            for k in range(HOLDERS)
        }
        self.size = max(len(message) for message in sent.values())
        arrived = {k: message for k, message in sent.items() if k >= DROPPED}
        summed = self.sums.add("updates", number, arrived, self.ask)
        if summed is None:
            raise RuntimeError(f"the sum did not open: {self.sums.notes()}")
        for _ in range(HOLDERS):
            opened = self.client.open(summed.total, number=number + 1)
        if np.abs(opened - np.sum(deltas[DROPPED:], axis=0) / HOLDERS).max() > CODE.max_error * (1 + 1e-6):
            raise RuntimeError("the sum is wrong")


def bfv_alone(deltas: list[np.ndarray], keys: KeyPair) -> None:
    """The same holders' sum under BFV without masks."""
    client, server = aggregators("bfv", keys, fixed_point=CODE)
    sent = [client.contribute(deltas[k], 1 / HOLDERS, client=k) for k in range(HOLDERS)]
    total = server.add(sent[DROPPED:])
    for _ in range(HOLDERS):
        client.open(total)


def shortest(work: Callable[[int], object]) -> float:
    """Processor time of the fastest of several sums, each with a number of its own."""
    times = []
    for number in range(REPEATS):
        start = time.process_time()
        work(number)
        times.append(time.process_time() - start)
    return min(times)


def flower(deltas: list[np.ndarray]) -> float | None:
    """Processor time of SecAgg+'s own arithmetic at its defaults, for all holders; None without flwr."""
    try:
        from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_mod
        from flwr.common.secure_aggregation.quantization import quantize
        from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
    except ImportError:
        return None
    start = time.process_time()
    total: Any = None
    for k in range(HOLDERS):
        vector = quantize([deltas[k]], 8.0, 1 << 22)
        for other in range(HOLDERS):  # its own mask, and one for each neighbour
            seed = bytes([k, other] * 16)
            vector = parameters_addition(vector, pseudo_rand_gen(seed, 1 << 32, [(PARAMETERS,)]))
        vector = parameters_mod(vector, 1 << 32)
        total = vector if total is None else parameters_mod(parameters_addition(total, vector), 1 << 32)
    return time.process_time() - start


def run() -> list[Result]:
    rng = np.random.default_rng(0)
    deltas = [rng.normal(0, 0.01, PARAMETERS) for _ in range(HOLDERS)]
    group, encrypted = Sum(new_keys("masked")), Sum(keys := new_keys("bfv"))
    masked = shortest(lambda number: group.whole(deltas, number))
    with_masks = shortest(lambda number: encrypted.whole(deltas, number))
    alone = shortest(lambda number: bfv_alone(deltas, keys))
    theirs = flower(deltas)
    micro = 1e6 / PARAMETERS
    results = [
        Result("masked: bytes a parameter up, each holder", group.size / PARAMETERS, 5, "B", at_least=False),
        Result("masked: µs a parameter, all holders and server", masked * micro, 1, "µs", at_least=False),
        Result("masked: ms to prepare a block of 16 sums", group.prepared * 1e3, 1000, "ms", at_least=False),
        Result("BFV: with masks, times the time without", with_masks / alone, 1.25, "×", at_least=False),
    ]
    if theirs is not None:
        results += [
            Result("masked: times smaller than SecAgg+ (8.07 B)", 8.07 * PARAMETERS / group.size, 1.5, "×"),
            Result("masked, whole: times faster than SecAgg+'s quantising and masking alone", theirs / masked, 1, "×"),
        ]
    return results
