"""A server that forges counts, or any other number of the terms: what a data holder releases never costs more than it
states, or it refuses."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.accountant import Accountant
from accountant.errors import InputError
from accountant.ledger.ledger import Ledger
from accountant.spending import Spend
from privfair.channels.base import Declined, require_planned
from privfair.config import Config
from privfair.deployment.holder import Holder, require_acceptable
from privfair.deployment.protocol import digest, sealed, shared_plan
from privfair.federated.exchange import ServerState, decode, encode_request
from privfair.federated.messages import (
    Answered,
    Asked,
    Counts,
    CountsRequest,
    Missing,
    Parameters,
    ScoresRequest,
    Task,
    TrainRequest,
)
from privfair.federated.release_plan import RELEASE_PLANS, ReleasePlan
from privfair.federated.round import ExactCounts, HeldByServer, Server, begin, run_round
from tests.flower.federations import merged

RUN = "20260101-000000-0123abcd"
BASE: dict[str, Any] = {
    "data": {"name": "synthetic", "clients": 3, "records": 40},
    "federation": {"rounds": 2, "batch_size": 10},
    "fairness": {"samples": 12},
    "aggregation": {"scheme": "plain", "quantise": True},
    "run": {"seed": 4, "clients": ["client-1", "client-2", "client-3"]},
}
NOISE = {"prediction_noise": 1.0, "noise_multiplier": 1.0}
TARGET = {"epsilon": 3.0, "target_method": "rdp", "delta": 1e-6, "retries": 0}
PLANS: dict[str, dict[str, Any]] = {
    "public counts, target": {"privacy": {"counts": "public", "local_steps": 3, **TARGET}},
    "public counts, given noise": {"privacy": {"counts": "public", "local_steps": 3, "delta": 1e-6, **NOISE}},
    "noisy counts, two phases": {"privacy": {"count_noise": 2.0, "min_count": 1, "local_steps": 3, **TARGET}},
    "noisy counts, one phase": {
        "privacy": {"count_noise": 0.5, "sampling_rate": 0.5, "prediction_rate": 0.5, "min_count": 1, **NOISE}
    },
    "whole clients, scores": {"privacy": {"updates": "client_level", "counts": "public", **TARGET}},
    "whole clients, features": {
        "privacy": {"updates": "client_level", "counts": "public", "delta": 1e-6, "prediction_noise": 40.0}
        | {"noise_multiplier": 9.0},
        "fairness": {"tracker": "embedding"},
    },
}  # fmt: skip

ForgeCounts = Callable[[list[Counts]], list[Counts]]
ForgeTerms = Callable[[dict[str, Any]], None]


@dataclass
class Forger:
    """A server with one data holder, the first of three; it makes up the others, and what it likes of the terms."""

    folder: Path
    sections: dict[str, Any]
    counts: ForgeCounts = lambda counts: counts
    release_plan: ForgeTerms = lambda tables: None
    asks: bool = True  # whether it asks for counts at all
    refusals: list[str] = field(default_factory=list)
    clients: int = 3
    released: Counts | None = None  # what the holder reported

    def __post_init__(self) -> None:
        ledger = {"run": {"ledger": f"sqlite:///{self.folder}/ledger.sqlite"}}
        self.config = Config.build(merged(BASE, self.sections, ledger))
        self.holder = Holder(self.config, "client-1", self.folder / "node")
        self.parts = self.holder.spec
        self.inner = self.parts.negotiator()
        self.count_noise, self.admits_later = self.inner.count_noise, False
        self.text = ""
        plan = json.dumps(shared_plan(self.config))
        assert self.holder.handle(sealed("hello", RUN, plan=plan))["kind"] == "here"

    # ---- as a negotiator

    def settle(self, counts: list[Counts]) -> ReleasePlan:
        others = [Counts(30, _half(30, len(self.parts.cells))) for _ in counts[1:]]
        return self.inner.settle(self.counts([counts[0], *others]))

    def ended(self, error: InputError) -> Exception:
        return error

    # ---- as a backend

    def agreed(self, release_plan: ReleasePlan) -> None:
        tables = json.loads(RELEASE_PLANS.to_text(release_plan))
        self.release_plan(tables)
        self.text = json.dumps(tables, sort_keys=True)

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        return [self._asked(request(k)) if k == 0 else Missing(k, "made up") for k in clients]

    def _asked(self, request: Asked) -> Answered:
        counting = isinstance(request, CountsRequest)
        if counting and not self.asks:
            return Counts(20, _half(20, len(self.parts.cells)))
        release_plan = (
            {"terms_id": "", "terms": ""} if counting else {"terms_id": digest(self.text), "terms": self.text}
        )
        none: dict[str, Any] = {"sums": []}
        answer = self.holder.handle(sealed("order", RUN, request=[encode_request(request)], **release_plan, **none))
        if answer["kind"] == "refused":
            self.refusals.append(str(answer["reason"]))
            return Missing(0, str(answer["reason"]))
        (reply,), (reason,) = answer["replies"], answer["reasons"]  # type: ignore[misc]
        if reason:
            self.refusals.append(str(reason))
        found = decode(reply) if reply else Missing(0, str(reason))  # type: ignore[arg-type]
        self.released = found if isinstance(found, Counts) else self.released
        return found

    # ---- a whole run

    def server(self) -> Server:
        """The rounds of an honest server, with this backend and these terms."""
        parts, whole = self.parts, cast(Any, self)
        replica = parts.replica(parts.model().parameters(), parts.client_side(None)[0])
        return parts.server(whole, parts.server_side(None), HeldByServer(replica), whole)

    def run(self) -> dict[str, Any]:
        """All rounds, and the holder's statement at the end; empty where it made none."""
        server = self.server()
        state: ServerState = begin(server)
        for _ in range(self.config.federation.rounds):
            state = run_round(state, server)
        self.holder.handle(sealed("end", RUN, sums=[], model=[]))
        path = self.folder / "node" / RUN / "privacy.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def rows(self) -> list[Spend]:
        """What stands in the holder's ledger."""
        with Ledger(f"sqlite:///{self.folder}/ledger.sqlite", create=False) as ledger:
            return [s for name in ledger.runs("synthetic") for _, s in ledger.spends(run=name)]

    def cost(self, method: str, delta: float) -> float:
        """What the rows cost, by an account of their own."""
        planner = self.parts.planner
        assert planner is not None
        account = Accountant(planner.adjacency, planner.unit)
        for s in self.rows():
            account.compose(s.event, s.count, client=s.client, group=s.group, channel=s.channel, round=s.round)
        return account.epsilon(delta, method)  # type: ignore[arg-type]


def _half(records: int, cells: int) -> np.ndarray:
    return np.array([records // 2, records - records // 2] * (cells // 2), dtype=np.int64)


def claiming(records: int) -> ForgeCounts:
    """Every data holder is said to have so many records, half of them in each group."""
    return lambda counts: [Counts(records, _half(records, len(c.cells))) for c in counts]


SMALL, LARGE = claiming(2), claiming(120_000)
FORGERIES = [("public counts, target", LARGE), ("whole clients, features", SMALL)]


@pytest.mark.parametrize("asks", [True, False], ids=["asked for counts", "never asked"])
@pytest.mark.parametrize(("plan", "forge"), FORGERIES)
def test_forged_counts_of_the_holder_get_nothing(tmp_path: Path, plan: str, forge: ForgeCounts, asks: bool) -> None:
    """With 120,000 records scores would need a fraction of the noise; features of a client with 2 records, too."""
    server = Forger(tmp_path, PLANS[plan], counts=forge, asks=asks)
    assert server.run() == {}
    assert {row.channel for row in server.rows()} == ({"counts"} if asks else set())
    words = "other counts of this data holder than it reported" if asks else "before it has reported its counts"
    assert server.refusals
    assert all(words in reason for reason in server.refusals)


@pytest.mark.parametrize(("plan", "forge"), FORGERIES)
def test_a_holder_that_let_itself_be_talked_into_it_does_not_call_that_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str, forge: ForgeCounts
) -> None:
    """Without the check of counts the forgery works: the statement gives what the rows cost, and claims nothing."""
    honest = Forger(_new(tmp_path / "honest"), PLANS[plan])
    stated = honest.run()
    assert stated["private"]
    assert stated["claim"] == ""
    monkeypatch.setattr("privfair.deployment.holder.require_acceptable", lambda *_: None)
    server = Forger(_new(tmp_path / "forged"), PLANS[plan], counts=forge, asks=False)
    stated = server.run()
    assert not server.refusals
    assert not stated["private"]
    assert stated["epsilon_of"] == "releases"
    assert "what was released costs" in stated["claim"]
    assert stated["epsilon"]["rdp"] == pytest.approx(server.cost("rdp", stated["delta"]), rel=1e-9)
    assert stated["epsilon"]["pld"] >= server.cost("pld", stated["delta"]) * (1 - 1e-9)


def test_counts_that_were_reported_are_known_after_a_restart_and_without_the_folder(tmp_path: Path) -> None:
    """A second process answers for the holder; then its folder is lost, and the ledger still has what was reported."""
    server = Forger(tmp_path, PLANS["noisy counts, two phases"], counts=claiming(600))
    begin(server.server())
    request = ScoresRequest(0, Parameters(server.parts.model().parameters()), np.array([1, 1]))
    for lost in (False, True):
        if lost:
            (tmp_path / "node" / RUN / "state.npz").unlink()
        server.holder = Holder(server.config, "client-1", tmp_path / "node")
        assert server.holder.handle(sealed("hello", RUN, plan=json.dumps(shared_plan(server.config))))["kind"] == "here"
        server._asked(request)
    assert server.refusals == ["The terms have other counts of this data holder than it reported."] * 2
    assert [row.channel for row in server.rows()] == ["counts"]


def test_no_refusal_depends_on_exact_counts(tmp_path: Path) -> None:
    """Noisy counts: terms with what was released are accepted, and those with the exact counts are refused."""
    server = Forger(tmp_path, PLANS["noisy counts, two phases"])
    exact = server.parts.cells.membership(server.holder.federation.clients[0].train).sum(axis=0)
    released = Counts(int(exact.sum()) + 1, exact + np.array([3, -2]))
    for own, accepted in ((released, True), (Counts(int(exact.sum()), exact), False)):
        release_plan = server.inner.settle([own, *[Counts(30, _half(30, len(exact)))] * 2])
        with nullcontext() if accepted else pytest.raises(Declined, match="other counts of this data holder"):
            require_acceptable(release_plan, None, server.parts, 0, released)


@pytest.mark.parametrize(
    ("weight", "accepted"), [(0.0, True), (1.0, True), (-0.5, False), (-1e-9, False), (1.5, False)]
)
def test_a_weight_is_a_share_of_a_whole(tmp_path: Path, weight: float, accepted: bool) -> None:
    """Also without privacy, where weights are the server's: a negative one would make room for others in the sum."""
    config = Config.build(merged(BASE, {"federation": {"method": "fedavg"}}))
    parts = Holder(config, "client-1", tmp_path).spec
    release_plan = ExactCounts().settle([Counts(30, _half(30, 2))] * 3)
    work = parts.plan.work(0)
    request = TrainRequest(0, Parameters(parts.model().parameters()), Task(), work, weight)
    with nullcontext() if 0 <= weight <= 1 else pytest.raises(Declined, match="The weight is no share of a whole"):
        require_planned(request, parts, release_plan, 0)


# ---- the law: whatever is forged, what a holder states is what its rows cost, or more


COUNT = st.one_of(st.integers(-3, 60), st.sampled_from([0, 1, 10**5, 10**12, 2**62]))
FACTORS = st.sampled_from([0.0, 0.05, 0.5, 0.999999, 1.000001, 2.0, 100.0, -1.0, math.inf, math.nan])


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all numbers of nested tables."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [leaf for key, one in inner for leaf in leaves(one, (*path, key))]
    return [path] if isinstance(value, int | float) and not isinstance(value, bool) else found


@settings(max_examples=50, deadline=None)
@given(data=st.data(), plan=st.sampled_from(sorted(PLANS)), asks=st.sampled_from([True, True, False]))
def test_a_holder_states_what_its_rows_cost_or_refuses(data: st.DataObject, plan: str, asks: bool) -> None:
    def forged_counts(counts: list[Counts]) -> list[Counts]:
        found = []
        for k, own in enumerate(counts):
            forge = data.draw(st.booleans(), f"forge the counts of {k}")
            cells = np.array([data.draw(COUNT) for _ in own.cells]) if forge else own.cells
            found.append(Counts(int(cells.sum()) if forge else own.records, cells))
        return found

    def forged_terms(tables: dict[str, Any]) -> None:
        for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]), "how many numbers")):
            *path, last = data.draw(st.sampled_from(leaves(tables)), "which number")
            place = tables
            for key in path:
                place = place[key]
            found = place[last] * data.draw(FACTORS)
            place[last] = round(found) if isinstance(place[last], int) and math.isfinite(found) else found

    with tempfile.TemporaryDirectory() as folder:
        server = Forger(Path(folder), PLANS[plan], counts=forged_counts, release_plan=forged_terms, asks=asks)
        try:
            stated = server.run()
        except InputError:  # the server's own rules: it has no terms to send
            stated = {}
        released = {row.channel for row in server.rows()} - {"counts"}
        if not stated:
            assert not released
            return
        assert asks
        assert stated["private"] or stated["claim"]
        if stated["private"]:
            assert server.cost("rdp", stated["delta"]) <= stated["epsilon"]["rdp"] * (1 + 1e-6)
            assert server.cost("pld", stated["delta"]) <= stated["epsilon"]["pld"] / 0.99


def _new(path: Path) -> Path:
    path.mkdir()
    return path
