"""Outputs of many models on records of many clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.backends.stacked.chunks import cut, rows_at_once
from privfair.backends.stacked.holdings import Pool
from privfair.backends.stacked.networks import Network


@dataclass(frozen=True)
class ForwardJob:
    """One model on some rows of its pool."""

    network: Network
    parameters: FloatArray
    pool: Pool
    index: NDArray[np.int64]


def outputs_of(jobs: Sequence[ForwardJob]) -> list[torch.Tensor]:
    """Each job's outputs, one per row."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, job in enumerate(jobs):
        groups.setdefault((job.network.key, id(job.pool)), []).append(number)
    results: list[torch.Tensor] = [torch.zeros(0)] * len(jobs)
    for members in groups.values():
        network, pool = jobs[members[0]].network, jobs[members[0]].pool
        members.sort(key=lambda n: -jobs[n].index.size)
        for part in cut(members, lambda n: max(1, jobs[n].index.size), rows_at_once(network.width)):
            index = np.zeros((len(part), max(1, jobs[part[0]].index.size)), dtype=np.int64)
            for row, n in zip(index, part, strict=True):
                row[: jobs[n].index.size] = jobs[n].index
            parameters = torch.from_numpy(np.stack([jobs[n].parameters for n in part]))
            outputs = network.outputs(parameters, pool.take(torch.from_numpy(index))[0])
            for row, n in zip(outputs, part, strict=True):
                results[n] = row[: jobs[n].index.size]
    return results
