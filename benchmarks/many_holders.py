"""One masked sum of many holders, with everybody's real keys and shares, and 5% who drop out.

    python -m benchmarks.many_holders --holders 10000

All parties are in one process, and the protocol is the one of runs: blocks of sums are prepared by `SecureSums`, whose
messages go to each holder's `MaskingDesk`. 5% of the holders send keys and shares, and then no vector; they do not
answer either. The sum is compared with the integers that were sent. Bytes are those of messages as they travel.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfair.federated.exchange import decode_masking, decode_request, encode_masking, encode_request
from privfair.federated.messages import Missing, UnmaskSumRequest, sum_number
from privfair.federated.secure_sums import MaskingDesk, SecureSums
from privfair.secure_aggregation.masked import TotalsForServer
from privfair.secure_aggregation.masking import MaskingHolder
from privfair.secure_aggregation.masks import Cohort, Federation
from privfair.secure_aggregation.neighbours import Neighbourhood

SILENT = 20  # one of so many drops out
SAMPLED = 50  # holders whose messages are counted


@dataclass(frozen=True)
class ManyHolders:
    """What one sum took."""

    holders: int
    survivors: int
    neighbours: Neighbourhood | None
    prepared: float  # seconds of processor time: keys, shares, rosters, of everybody and the server
    summed: float  # masked vectors, the sum, unmasking
    up: float  # bytes of a holder, on the mean
    down: float
    vector: float  # of these, its masked vector

    def lines(self) -> list[str]:
        """For people."""
        drawn, n = self.neighbours, self.holders
        among = "all others" if drawn is None else f"{drawn.degree} neighbours drawn by each, {drawn.threshold} open"
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return [
            f"{n:,} holders ({among}), {self.survivors:,} in the sum: exact",
            f"processor time: {self.prepared:,.0f} s before, {self.summed:,.0f} s for the sum; all parties together",
            f"a holder: {1e3 * self.prepared / n:,.1f} ms before, {1e3 * self.summed / n:,.1f} ms for the sum",
            f"a holder: {self.up:,.0f} bytes up ({self.vector:,.0f} its vector), {self.down:,.0f} bytes down",
            f"memory of all parties: {most:.1f} GB",
        ]


def one_sum(
    holders: int,
    *,
    colluders: int | None = None,
    parameters: int = 1_000,
    seed: int = 0,
    neighbours: Neighbourhood | None = None,
) -> ManyHolders:
    """Make one sum, and raise unless it is exact."""
    rng = np.random.default_rng(seed)
    identities = [Ed25519PrivateKey.generate() for _ in range(holders)]
    public = tuple(key.public_key().public_bytes_raw() for key in identities)
    about = Federation(Cohort.of(holders, colluders), public, "benchmark", b"", 1, neighbours)
    masking = {k: MaskingHolder(about, k, key) for k, key in enumerate(identities)}
    desks = {k: MaskingDesk(holder) for k, holder in masking.items()}
    sums, number = SecureSums({}, 1, about), sum_number("counts", None, 1)
    silent = frozenset(rng.choice(holders, -(-holders // SILENT), replace=False).tolist())
    counted = frozenset(sorted(set(range(holders)) - silent)[:SAMPLED])
    traffic: Counter[str] = Counter()

    def ask(clients: Sequence[int], request: Callable[[int], Any]) -> list[Any]:
        replies: list[Any] = []
        for k in clients:
            asked = request(k)
            if isinstance(asked, UnmaskSumRequest) and k in silent:
                replies.append(Missing(k, "dropped out"))
                continue
            if k not in counted:
                replies.append(desks[k].answer(asked))
                continue
            request_bytes = encode_request(asked)
            carried: Any = decode_request(request_bytes)
            reply_bytes = encode_masking(desks[k].answer(carried))
            replies.append(decode_masking(reply_bytes))
            traffic["down"] += len(request_bytes)
            traffic["up"] += len(reply_bytes)
        return replies

    start = time.process_time()
    ready = sums.ready("counts", None, range(holders), ask)
    prepared = time.process_time() - start
    x = rng.integers(-(2**12), 2**12, (holders, parameters))
    start, side = time.process_time(), TotalsForServer(masking)
    sent = {k: side.contribute(x[k], client=k, number=number) for k in ready if k not in silent}
    found = sums.totals("counts", None, sent, ask)
    summed = time.process_time() - start
    if found is None:
        raise RuntimeError(f"the sum did not open: {sums.notes()[:1]}")
    if not np.array_equal(found.values, x[list(found.members)].sum(axis=0)):
        raise RuntimeError("the sum is wrong")
    vector = sum(len(sent[k]) for k in counted) / len(counted)
    up, down = (traffic[way] / len(counted) for way in ("up", "down"))
    return ManyHolders(holders, len(found.members), about.neighbours, prepared, summed, up + vector, down, vector)


def main() -> None:
    """One sum, as the command line says."""
    about = argparse.ArgumentParser(description="One masked sum of many holders, 5%% of whom drop out.")
    about.add_argument("--holders", type=int, default=10_000)
    about.add_argument("--colluders", type=int, default=None, help="unless given, a third")
    about.add_argument("--parameters", type=int, default=1_000)
    given = about.parse_args()
    for line in one_sum(given.holders, colluders=given.colluders, parameters=given.parameters).lines():
        print(line, flush=True)


if __name__ == "__main__":
    main()
