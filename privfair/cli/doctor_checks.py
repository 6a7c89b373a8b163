"""What `privfair doctor` tries, each in earnest. Run as a program it tries the checks it is given, one after the other.

It is a program of its own because a package that does not fit the machine may end the process instead of raising.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "\x1eprivfair-doctor "  # libraries print, too; what begins so is ours
REINSTALL = "Install privfair again in a fresh environment: `make demo`, or pip install with constraints.txt."
POSTGRES_SECONDS = "5"
PASSWORD = re.compile(r"(://[^:/@\s]*):[^\s]*@")  # in the address of a ledger: people show this output to others


@dataclass(frozen=True)
class Check:
    """Something to try: what it is good for, whether privfair can do without, the remedy, and how it is tried."""

    title: str
    required: bool
    remedy: str
    attempt: Callable[[], Any]


def _training() -> str:
    import torch

    weights = torch.zeros(3, requires_grad=True)
    loss = torch.nn.functional.softplus(-(torch.ones(4, 3) @ weights)).mean()
    loss.backward()
    if weights.grad is None or not bool(torch.isclose(weights.grad, torch.tensor(-0.5)).all()):
        raise RuntimeError(f"a gradient that must be −0.5 is {weights.grad}")
    return "a gradient was computed"


def _dp_sgd() -> str:
    from privfair.clients.opacus_engine import PerExampleGradients

    return f"Opacus' samplers for {len(PerExampleGradients.GRAD_SAMPLERS)} kinds of layers loaded"


def _encryption() -> str:
    import numpy as np

    from privfair.aggregation import MODULI, FixedPoint, aggregators, new_keys

    code = FixedPoint(range=1.0, weight_sum=1.0, contributors=2, modulus=MODULI["bfv"])
    client, server = aggregators("bfv", new_keys("bfv"), fixed_point=code)
    first, second = np.array([0.5, -1.0]), np.array([0.25, 1.0])
    sent = [client.contribute(first, 0.25, client=0), client.contribute(second, 0.75, client=1)]
    total = client.open(server.add(sent, names=["a", "b"]))
    if not np.allclose(total, 0.25 * first + 0.75 * second, atol=2 * code.max_error):
        raise RuntimeError(f"an encrypted sum is wrong: {total}")
    return "two messages were encrypted, added and opened"


def _ledger() -> str:
    from accountant import Budget, Gaussian, Ledger, Spend
    from accountant.audit import audit
    from accountant.state import not_remembered

    with (
        not_remembered(),
        tempfile.TemporaryDirectory() as folder,
        Ledger(f"sqlite:///{Path(folder) / 'trial.sqlite'}") as ledger,
    ):
        ledger.set_budget("trial", Budget(epsilon=3.0, delta=1e-6))
        ledger.reserve([Spend("trial", Gaussian(noise_scale=10.0), client="north", channel="updates")]).redeem()
        report = audit(ledger, pld=False)
        if not report.fine:
            raise RuntimeError(f"a new ledger does not pass its audit: {report.problems}")
        return f"{report.rows} rows written to a temporary ledger and audited"


def _stacked() -> str:
    import privfair.backends.stacked
    import privfair.backends.stacked.fused_private  # noqa: F401  (the compiled steps)

    return "compiled steps loaded (the first sweep compiles them, half a minute)"


def _flower() -> str:
    import privfair.backends.flower.client_app
    import privfair.backends.flower.server_app  # noqa: F401

    return "server and client apps loaded"


def _ray() -> str:
    import ray

    return f"Ray {ray.__version__} loaded"


def _parquet() -> str:
    import io
    from importlib import import_module

    import_module("pyarrow")  # before pandas says that it is missing, in many more words
    import pandas as pd

    buffer = io.BytesIO()
    pd.DataFrame({"value": [1.0, 2.0]}).to_parquet(buffer, engine="pyarrow")
    return f"a table of {len(pd.read_parquet(io.BytesIO(buffer.getvalue())))} rows was written and read"


def _postgres() -> str:
    import psycopg

    return f"psycopg {psycopg.__version__} loaded"


def _default_ledger() -> str:
    from accountant.ledger import Ledger
    from accountant.storage import LEDGER_VARIABLE, exists, ledger_url

    os.environ.setdefault("PGCONNECT_TIMEOUT", POSTGRES_SECONDS)  # this program's own: a silent server is an answer
    url = ledger_url(None)
    where = f"${LEDGER_VARIABLE}" if os.environ.get(LEDGER_VARIABLE) else "the default"
    if not exists(url):
        return f"{url} ({where}): none yet, the first private run makes it"
    with Ledger(url, create=False) as ledger:
        return f"{ledger.url} ({where}): opens, {ledger.head().sequence} rows"


def _datasets() -> dict[str, Any]:
    from privfair.datasets import describe

    return {
        info.name: {file.name: str(file.found) if file.found else None for file in info.files}
        for info in describe()
        if info.files
    }


def _extra(name: str) -> str:
    return f"Only if you need it: pip install 'privfair[{name}]'"


CHECKS = {
    "training": Check("training (torch)", True, REINSTALL, _training),
    "dp_sgd": Check("private updates (Opacus)", True, REINSTALL, _dp_sgd),
    "encryption": Check("encrypted sums (TenSEAL)", True, REINSTALL, _encryption),
    "ledger": Check("privacy ledger (SQLite)", True, "See that the temporary folder (TMPDIR) is writable.", _ledger),
    "stacked": Check("sweeps (numba)", True, REINSTALL, _stacked),
    "default_ledger": Check(
        "your ledger", True, "Check $PRIVFAIR_LEDGER and the file; `privfair audit` tells more.", _default_ledger
    ),
    "datasets": Check("datasets", True, REINSTALL, _datasets),
    "flower": Check("several machines (Flower)", False, _extra("flower"), _flower),
    "ray": Check("Flower's simulation (Ray)", False, _extra("flower"), _ray),
    "postgres": Check("ledgers in PostgreSQL", False, _extra("postgres"), _postgres),
    "parquet": Check("sweeps as Parquet", False, _extra("parquet"), _parquet),
}


def _tell(**fields: Any) -> None:
    print(f"\n{MARK}{json.dumps(fields)}", flush=True)


def main(names: list[str]) -> None:
    """Try these checks and print one line when each begins and when it has an answer."""
    for name in names:
        _tell(name=name, begins=True)
        started = time.perf_counter()
        try:
            found, works = CHECKS[name].attempt(), True
        except Exception as error:  # noqa: BLE001  whatever a package raises is the answer
            found, works = PASSWORD.sub(r"\1:***@", f"{type(error).__name__}: {error}"), False
        _tell(name=name, works=works, found=found, seconds=round(time.perf_counter() - started, 2))


if __name__ == "__main__":
    main(sys.argv[1:])
