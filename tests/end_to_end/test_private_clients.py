"""Clients that answer nonsense, and a server that cannot read: private, encrypted runs under bad conditions."""

from __future__ import annotations

import gc
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tenseal

import privfair
from accountant.audit import audit
from accountant.errors import InputError
from accountant.ledger.ledger import Ledger
from privfair.channels.base import respond
from privfair.clients.client import Client
from privfair.config import Config
from privfair.engines import local
from privfair.federated.messages import Counts, Scores, Update
from privfair.runs.assembly import build
from privfair.runs.folder import RunDirectory
from privfair.secure_aggregation import new_keys
from privfair.secure_aggregation.aggregators import ClientAggregator
from privfair.secure_aggregation.ciphertext import Ciphertext
from tests.end_to_end.federations import toy
from tests.end_to_end.test_private_training import GIVEN, QUICK, parameters

Spoil = Callable[[Client, Any], Any]


def shortened(reply: Scores) -> Scores:
    return Scores(tuple(cell[:-1] for cell in reply.cells))


def of_another_key(client: Client, reply: Update) -> Update:
    """The same numbers, encrypted by somebody with keys of their own."""
    known = client.replica.aggregator
    stranger = ClientAggregator(new_keys("bfv").client, known._coded.fixed_point)
    return Update(stranger.contribute(np.zeros(client.replica.contribution_size), 0.3))


SCORES, COUNTS, UPDATE = (f"{what} of client 'client1'" for what in ("scores", "counts", "contribution"))
GARBAGE: dict[str, tuple[type, Spoil, str]] = {
    "another kind": (Scores, lambda c, r: Counts(3, np.array([1, 2])), "reply of client 'client1'"),
    "no reply": (Scores, lambda c, r: {"scores": [0.5]}, "reply of client 'client1'"),
    "nothing": (Update, lambda c, r: None, "reply of client 'client1'"),
    "short scores": (Scores, lambda c, r: shortened(r), SCORES),
    "long scores": (Scores, lambda c, r: Scores(tuple(np.append(x, 0.5) for x in r.cells)), SCORES),
    "one cell": (Scores, lambda c, r: Scores(r.cells[:1]), SCORES),
    "table of scores": (Scores, lambda c, r: Scores(tuple(x[:, None] for x in r.cells)), SCORES),
    "nan scores": (Scores, lambda c, r: Scores(tuple(x * np.nan for x in r.cells)), SCORES + ".*finite"),
    "infinite scores": (Scores, lambda c, r: Scores(tuple(x + np.inf for x in r.cells)), SCORES),
    "text": (Scores, lambda c, r: Scores(tuple(np.array(["a"] * x.size) for x in r.cells)), SCORES),
    "cells missing": (Counts, lambda c, r: Counts(r.records, r.cells[:1]), COUNTS),
    "fractional counts": (Counts, lambda c, r: Counts(r.records, r.cells + 0.5), COUNTS),
    "cut short": (Update, lambda c, r: Update(r.contribution[:-100]), UPDATE + " must be whole"),
    "no bytes": (Update, lambda c, r: Update(b""), UPDATE),
    "random bytes": (Update, lambda c, r: Update(np.random.default_rng(0).bytes(500)), UPDATE),
    "a byte changed": (
        Update, lambda c, r: Update(r.contribution[:-50] + b"x" + r.contribution[-49:]), UPDATE
    ),
    "another key": (Update, of_another_key, UPDATE + " must be made under the key"),
}  # fmt: skip


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_is_named_and_the_run_goes_on_without_it(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 1 spoils its answer in the second round (counts: at once). State on disk stays; later it behaves."""
    kind, spoil, message = GARBAGE[case]
    url, out, data = f"sqlite:///{tmp_path}/l.sqlite", tmp_path / "run", toy(records=80)

    def spoiled(client: Client, request: Any) -> Any:
        reply = respond(client, request)
        due = isinstance(reply, Counts) or getattr(request, "round", 0) == 1
        return spoil(client, reply) if client.index == 1 and isinstance(reply, kind) and due else reply

    with monkeypatch.context() as patch:
        patch.setattr(local, "respond", spoiled)
        with pytest.raises(InputError, match=message) as caught:
            privfair.train(
                dataset=data, privacy=GIVEN, federation={**QUICK, "rounds": 3}, run={"ledger": url}, out=out,
            )  # fmt: skip
        assert "Traceback" not in str(caught.value)
    run = json.loads((out / "run.json").read_text())["run"]
    checkpoint = RunDirectory.open(out).read_checkpoint()
    assert (checkpoint is None) == (kind is Counts)
    assert checkpoint is None or (checkpoint.round, int(checkpoint.replica["round"][0])) == (1, 1)
    with Ledger(url) as ledger:
        assert audit(ledger, pld=False).fine
        before = len(ledger.spends(run=run))
    resumed = privfair.train(resume=out, dataset=data)
    assert np.isfinite(parameters(resumed)).all()
    assert resumed.metrics["rounds"] == 3
    rows = resumed.privacy["ledger"]["rows"]
    assert rows > before or kind is Update
    # what was spoilt was paid for, and its repetition too, but no more than that
    whole = 3 * (1 + 3 * 3)
    assert whole <= rows <= whole + 9
    assert privfair.load(out).predict(data.clients[0].test.features).size == 20


# ---- the server


def reachable(start: object) -> list[object]:
    """Every object that can be come by from this one: attributes, items, closures; not modules and classes."""
    seen: dict[int, object] = {}
    stack = [start]
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, types.ModuleType | type | types.BuiltinFunctionType):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, types.FunctionType):
            stack += [cell.cell_contents for cell in thing.__closure__ or ()]
            continue
        stack += gc.get_referents(thing)
        stack += list(getattr(thing, "__dict__", {}).values())
    return list(seen.values())


def contexts(things: list[object]) -> list[Any]:
    """TenSEAL contexts among them, also those that are bytes so far."""
    found: list[Any] = []
    for thing in things:
        if isinstance(thing, tenseal.Context):
            found.append(thing)
        elif isinstance(thing, bytes) and len(thing) > 1000:
            try:
                found.append(tenseal.Context.load(thing))
            except (ValueError, RuntimeError, TypeError):
                continue
    return found


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_nothing_the_server_adds_with_can_decrypt(scheme: str) -> None:
    simulation = build(Config.build({"aggregation": {"scheme": scheme}, "federation": QUICK}), toy())
    client = simulation.replica.aggregator
    values = np.arange(1.0, 1.0 + simulation.replica.contribution_size) / 100
    sent = [client.contribute(values, 0.5, client=k) for k in range(2)]
    message = simulation.server.adder.add(sent, ["a", "b"])
    np.testing.assert_allclose(client.open(message), values, atol=1e-3)  # those who may, can
    everything = reachable(simulation.server.adder)
    assert not any(isinstance(thing, ClientAggregator) for thing in everything)
    assert not any(hasattr(thing, name) for thing in everything for name in ("decrypt_chunk", "open_sum"))
    known = contexts(everything)
    assert known, "the search must find the server's public context, or it proves nothing"
    chunk = next(iter(Ciphertext.from_bytes(message, "sum").chunks))
    native = tenseal._ts_cpp.BFVVector if scheme == "bfv" else tenseal._ts_cpp.CKKSVector
    for context in known:
        assert not context.has_secret_key()
        assert not context.has_galois_keys()
        assert not context.has_relin_keys()
        with pytest.raises((ValueError, RuntimeError)):
            native(context.data, bytes(chunk)).decrypt()
        with pytest.raises((ValueError, RuntimeError)):
            context.secret_key()
    # the same search from a client's side finds the secret: it is able to find one
    assert any(context.has_secret_key() for context in contexts(reachable(client)))


def test_the_server_of_an_encrypted_run_keeps_no_model(tmp_path: Path) -> None:
    """What passes the server's hands between rounds: a sealed sum, never parameters."""
    from privfair.federated.messages import Sealed
    from privfair.federated.round import HeldByClients, begin, run_round

    config = Config.build({"federation": QUICK, "privacy": GIVEN, "run": {"ledger": f"sqlite:///{tmp_path}/l.sqlite"}})
    simulation = build(config, toy(records=80))
    assert isinstance(simulation.server.model_holder, HeldByClients)
    state = begin(simulation.server)
    for _ in range(2):
        state = run_round(state, simulation.server)
        assert isinstance(state.model, Sealed)
        assert not any(
            isinstance(thing, np.ndarray)
            and thing.dtype.kind == "f"
            and thing.size == simulation.replica.parameters.size
            for thing in reachable(state)
        )
    simulation.close()
