"""Encrypted aggregation of 10 clients × 1,000,000 parameters, against CKKS with one vector per layer.

The other side is what federated frameworks do with TenSEAL (NVFlare among them): CKKS at degree 8192 with moduli
[60, 40, 40], scale 2⁴⁰, every layer a vector of its own. Both sides do the whole way: encrypt at ten clients, bytes,
add at the server, bytes, decrypt at one client; on one thread, and timed by the processor time they take, since
a busy machine would otherwise decide.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import tenseal

from benchmarks.measure import Result
from privfair.secure_aggregation import MODULI, FixedPoint, aggregators, new_keys

CLIENTS = 10
# Weights and biases of three convolutions and two dense layers, the last one trimmed to a round million.
LAYERS = (864, 32, 18_432, 64, 73_728, 128, 903_168, 144, 3_416, 24)
PARAMETERS = sum(LAYERS)


def run() -> list[Result]:
    rng = np.random.default_rng(0)
    deltas = [rng.normal(0, 0.01, PARAMETERS) for _ in range(CLIENTS)]
    sizes: dict[str, int] = {}
    ours = processor_seconds(lambda: sizes.update(ours=bfv(deltas)))
    with silence():
        theirs = processor_seconds(lambda: sizes.update(theirs=ckks_by_layer(deltas)))
    few, many = memory(CLIENTS), memory(2 * CLIENTS)
    return [
        Result("BFV: bytes a parameter on the wire", sizes["ours"] / PARAMETERS, 16, "B", at_least=False),
        Result("BFV: times smaller than CKKS by layer", sizes["theirs"] / sizes["ours"], 3.5, "×"),
        Result("BFV: times faster than CKKS by layer (encrypt + add + decrypt)", theirs / ours, 2, "×"),
        Result("BFV: peak memory of the process that plays all parts", few, 0.3, "GB", at_least=False),
        Result(
            "BFV: more memory for 20 clients than for 10 (a message: 0.0151)", many - few, 0.0151, "GB", at_least=False
        ),
    ]


def bfv(deltas: list[np.ndarray]) -> int:
    """One aggregation by this package; the size of a contribution."""
    code = FixedPoint(1.0, 1.0, CLIENTS, MODULI["bfv"])
    client, server = aggregators("bfv", new_keys("bfv"), fixed_point=code)
    sizes = []

    def contributions():
        for number, delta in enumerate(deltas):
            message = client.contribute(delta, 1 / CLIENTS, client=number)
            sizes.append(len(message))
            yield message

    opened = client.open(server.add(contributions()))
    if np.abs(opened - np.mean(deltas, axis=0)).max() > code.max_error * (1 + 1e-6):
        raise RuntimeError("the sum is wrong")
    return max(sizes)


def ckks_by_layer(deltas: list[np.ndarray]) -> int:
    """The same with TenSEAL's CKKS vectors, one for each layer; the size of a contribution."""
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40], n_threads=1)
    context.global_scale = 2**40
    ends = np.cumsum(LAYERS)[:-1]
    size, totals = 0, None
    for delta in deltas:
        message = [tenseal.ckks_vector(context, layer / CLIENTS).serialize() for layer in np.split(delta, ends)]
        size = sum(map(len, message))
        vectors = [tenseal.ckks_vector_from(context, layer) for layer in message]
        totals = vectors if totals is None else [a.add_(b) for a, b in zip(totals, vectors, strict=True)]
    answer = [total.serialize() for total in totals or []]
    opened = np.concatenate([tenseal.ckks_vector_from(context, layer).decrypt() for layer in answer])
    if np.abs(opened - np.mean(deltas, axis=0)).max() > 1e-4:
        raise RuntimeError("the sum is wrong")
    return size


def processor_seconds(work: Callable[[], object]) -> float:
    """Processor time of this process while it works."""
    start = time.process_time()
    work()
    return time.process_time() - start


def memory(clients: int) -> float:
    """Peak memory, in GB, of a process in which so many clients contribute one after the other.

    From /proc: the peak of `getrusage` starts at the size of the process that started this one.
    """
    program = (
        "import numpy as np\n"
        "from privfair.secure_aggregation import MODULI, FixedPoint, aggregators, new_keys\n"
        f"code = FixedPoint(1.0, 1.0, {clients}, MODULI['bfv'])\n"
        "client, server = aggregators('bfv', new_keys('bfv'), fixed_point=code)\n"
        f"delta = np.random.default_rng(0).normal(0, 0.01, {PARAMETERS})\n"
        f"client.open(server.add(client.contribute(delta, 1 / {clients}, client=k) for k in range({clients})))\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return int(output) * 1024 / 1e9


@contextmanager
def silence() -> Iterator[None]:
    """Without the notice that TenSEAL's library prints for every vector longer than a ciphertext."""
    kept = [os.dup(1), os.dup(2)]
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
