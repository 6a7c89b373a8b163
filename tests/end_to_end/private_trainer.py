"""A process of its own that trains privately and encrypted: run by the fault tests, not by pytest.

python private_trainer.py

It imports everything once and then serves jobs, one line of JSON on standard input each: for a job it forks a child
that trains (or resumes) and tells the child's number; at the line "reap" it tells how the child ended. The child notes
every reply that reaches the server in a file, on disk before the server sees it: client, channel, round and the digest
of the message.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import privfair
from privfair.federated.exchange import Metered, encode
from privfair.federated.messages import CountsRequest, EvaluateRequest, Reply, Request, ScoresRequest
from privfair.secure_aggregation import new_keys
from tests.end_to_end.federations import toy

# What a run loads when it needs it takes seconds: here once, for all children.
LOADED_LATE = (
    "fairlearn.metrics",
    "numba",
    "pandas",
    "accountant.pld",
    "privfair.api",
    "privfair.clients.opacus_engine",
)


def channel_of(request: Request) -> str:
    if isinstance(request, CountsRequest):
        return "counts"
    if isinstance(request, EvaluateRequest):
        return "evaluation"
    return "predictions" if isinstance(request, ScoresRequest) else "updates"


def note_replies(path: Path) -> None:
    """From now on everything that reaches the server of this process is noted first."""
    original = Metered.exchange

    def exchange(self: Metered, clients: Sequence[int], request: Callable[[int], Request]) -> list[Reply]:
        requests = {k: request(k) for k in clients}
        replies = original(self, clients, requests.__getitem__)
        lines = [
            json.dumps(
                [f"client{k}", channel_of(r), getattr(r, "round", None), hashlib.sha256(encode(reply)).hexdigest()]
            )
            for (k, r), reply in zip(requests.items(), replies, strict=True)
        ]
        with path.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        return replies

    Metered.exchange = exchange  # type: ignore[method-assign]


def train(job: dict[str, Any]) -> None:
    note_replies(Path(job["notes"]))
    out, data = Path(job["out"]), toy(**job["toy"])
    if (out / "config.toml").is_file():
        privfair.train(resume=out, dataset=data)
    else:
        privfair.train(job["config"], dataset=data, out=out)


def serve() -> None:
    torch.set_num_threads(1)
    new_keys("bfv")  # loads TenSEAL
    for module in LOADED_LATE:
        importlib.import_module(module)
    print("ready", flush=True)
    child = 0
    for line in sys.stdin:
        if line.strip() == "reap":
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        child = os.fork()
        if child == 0:
            try:
                train(json.loads(line))
            except BaseException:  # noqa: BLE001 - whatever it is, the parent must hear of it
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    serve()
