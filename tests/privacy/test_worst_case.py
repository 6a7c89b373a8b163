"""A plan is for the record, or the client, that pays most: held against the rows of every client, unequal as they are.

The oracle does not know how the plan was made. It prices every request that the plan has for every client, as a ledger
would, and adds the rows up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privfair
from accountant.accountant import Accountant
from accountant.spending import Spend
from privfair.channels.base import PriceList
from privfair.channels.counts import CountsChannel
from privfair.clients.client import Client
from privfair.datasets.records import ClientData, Federation
from privfair.fairness.tracking import EmbeddingPlan
from privfair.federated.messages import Counts
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Schedule
from privfair.mechanisms.vector_release import UpdatePlan
from privfair.privacy.forecast import beyond_plan, count_spends, planned_spends
from privfair.privacy.planner import Planner, PrivateCounts
from tests.end_to_end.federations import toy
from tests.privacy.plans import GIVEN, RATES, cells_of, planner

ROUNDS = 3
PLAN = Schedule(seed=0, epochs=1, batch_size=50, learning_rate=0.1, learning_rate_decay=1.0, clients_per_round=None)
GIVEN_NOISE = {"counts": "public", "retries": 0, "prediction_noise": 1.0, "noise_multiplier": 2.0}
PUBLIC = {**GIVEN_NOISE, "sampling_rate": 0.25}
FEATURES = EmbeddingPlan("energy", 0.0, 1.0, 8)
WHOLE = {**GIVEN_NOISE, "updates": "client_level", "noise_multiplier": 9.0}
UPDATES = UpdatePlan(2.0, 5, 10**8)
MANY = {**WHOLE, "prediction_noise": 2000.0}  # features of all records of a client


def settled(plan: Planner, cells: Sequence[Sequence[int]]) -> ReleasePlan:
    """The terms for clients with these cells; of several attributes or sets, a total that the cells add up to."""
    counts = []
    for own in cells:
        records = int(np.sum(own)) // plan.cells.attributes
        counts.append(Counts(records, np.array(own, dtype=np.int64)))
    return PrivateCounts(plan).settle(counts)


def price_lists(plan: Planner, cells: Sequence[Sequence[int]]) -> list[PriceList]:
    labels = []
    for c in plan.cells.comparisons:
        exclusive = plan.cells.notion.sets_of_a_record == 1 and len(plan.cells.notion.sets) > 1
        names = (f"a{c.attribute}", f"{c.condition}")
        labels += [f"{names[0]},y={g},{names[1]}" if exclusive else f"{names[0]}={g}" for g in range(len(c.cells))]
    return [
        PriceList("toy", "run", f"c{k}", tuple(labels), plan.cells, plan.adjacency, np.array(own), plan.unit)
        for k, own in enumerate(cells)
    ]


def rows_of(plan: Planner, release_plan: ReleasePlan, prices: list[PriceList]) -> list[Spend]:
    """Everything that the plan has the clients release."""
    return [
        *count_spends(release_plan, PLAN, prices),
        *planned_spends(release_plan, PLAN, range(ROUNDS), prices),
    ]


def cost(plan: Planner, rows: Sequence[Spend], method: str = "rdp") -> float:
    account = Accountant(plan.adjacency, plan.unit)
    for s in rows:
        account.compose(s.event, s.count, client=s.client, group=s.group, channel=s.channel, round=s.round)
    return account.epsilon(plan.config.delta, method)  # type: ignore[arg-type]


def sizes(count: int) -> st.SearchStrategy[list[list[int]]]:
    some = st.sampled_from([60, 100, 240, 900])
    return st.lists(st.lists(some, min_size=count, max_size=count), min_size=2, max_size=3)


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "scores": (PUBLIC, {}, {}),
    "scores of sets that exclude each other": (PUBLIC, {"notion": "equalized_odds"}, {}),
    "scores of two attributes": (PUBLIC, {"attributes": 2}, {}),
    "scores of overlapping sets": (PUBLIC, {"notion": "conditional_statistical_parity"}, {}),
    "scores of whole clients": (WHOLE, {}, {"updates": UPDATES}),
    "features": (PUBLIC, {}, {"embedding": FEATURES}),
    "features of whole clients": (MANY, {}, {"updates": UPDATES, "embedding": FEATURES}),
    "scores, noisy counts": ({**GIVEN, "sampling_rate": 0.25, "retries": 0, "epsilon": 60.0}, {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_the_claim_is_what_the_client_pays_that_pays_most(kind: str, data: st.DataObject) -> None:
    privacy, shape, work = KINDS[kind]
    plan = planner(privacy, cells_of(**shape), rounds=ROUNDS, **work)
    cells = data.draw(sizes(len(plan.cells)))
    release_plan = settled(plan, cells)
    rows = rows_of(plan, release_plan, price_lists(plan, cells))
    assert release_plan.claim is not None
    found = cost(plan, rows)
    assert found <= release_plan.claim.rdp * (1 + 1e-9)
    one_cell = plan.cells.attributes * plan.cells.notion.sets_of_a_record == 1  # else the worst of several clients
    if one_cell and not release_plan.claim.two_phases:  # and no release more than those: the plan is not for more
        assert found == pytest.approx(release_plan.claim.rdp, rel=1e-6)


def test_unequal_clients_pay_unequally_and_the_plan_is_for_the_one_with_the_most_records() -> None:
    """Features of a client with 900 records move nine times as far as those of one with 100."""
    work = {"updates": UPDATES, "embedding": FEATURES}
    claims = []
    for cells in ([(450, 450), (50, 50)], [(50, 50), (50, 50)], [(450, 450), (450, 450)]):
        claim = settled(planner(MANY, rounds=ROUNDS, **work), cells).claim
        assert claim is not None
        claims.append(claim.pld)
    assert claims[0] == pytest.approx(claims[2], rel=1e-9)
    assert claims[0] > 1.2 * claims[1]


def test_unequal_sets_cost_unequally_and_the_plan_is_for_the_smallest() -> None:
    """Of sets that exclude each other, records of the smaller one are drawn at a higher rate."""
    plan = planner(PUBLIC, cells_of("equalized_odds"), rounds=ROUNDS)
    unequal, small, large = (settled(plan, [own] * 2).claim for own in ([900, 900, 60, 60], [60] * 4, [900] * 4))
    assert unequal is not None
    assert small is not None
    assert large is not None
    assert unequal.pld == pytest.approx(small.pld, rel=1e-9)
    assert unequal.pld > 1.2 * large.pld


# ---- what was released beyond the plan


@pytest.mark.parametrize("retries", [0, 1, 2])
@pytest.mark.parametrize("kind", ["scores", "scores of whole clients"])
def test_so_many_repetitions_as_planned_and_none_more(kind: str, retries: int) -> None:
    privacy, shape, work = KINDS[kind]
    plan = planner({**privacy, "retries": retries}, cells_of(**shape), rounds=ROUNDS, **work)
    cells = [(400, 300), (90, 120)]
    release_plan, prices = settled(plan, cells), price_lists(plan, cells)
    rows = rows_of(plan, release_plan, prices)
    for channel in ("predictions", "updates"):
        (lost, *_) = [row for row in rows if row.channel == channel and row.client == "c1"]
        within = [*rows, *[replace(lost, round=1)] * retries]
        assert beyond_plan(within, release_plan, PLAN, ROUNDS, prices, retries) == []
        assert beyond_plan([*within, lost], release_plan, PLAN, ROUNDS, prices, retries) == [f"c1: {channel}"]


# ---- clients that released counts leave out


def lopsided() -> Federation:
    """A small client that trains in every round, and large ones that do not."""
    base = toy(clients=3, records=200)
    sizes_ = (20, 150, 150)
    clients = tuple(
        ClientData(c.name, c.train.take(np.arange(n)), c.test) for c, n in zip(base.clients, sizes_, strict=True)
    )
    return Federation("lopsided", base.schema, clients)


@pytest.mark.parametrize(("records", "takes_part"), [(20, True), (19, False)])
def test_a_client_that_is_left_out_is_bounded_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int, takes_part: bool
) -> None:
    """Neighbours: with 20 records the first client takes part, with 19 it does not, and it trains most often.

    Counts are exact here (their noise is switched off), so that one record decides. Who sees the run of 19 records must
    not be told a smaller ε than the one that bounds what could have been there with 20.
    """

    def exact(self: CountsChannel, request: Any, client: Client, entropy: Any) -> Counts:
        return Counts(*client.data.cells.read(client.data.cells.tell(client.data.membership)))

    monkeypatch.setattr(CountsChannel, "respond", exact)
    data = lopsided()
    first = ClientData(data.clients[0].name, data.clients[0].train.take(np.arange(records)), data.clients[0].test)
    data = Federation(data.name, data.schema, (first, *data.clients[1:]))
    privacy = {**GIVEN, **RATES, "count_noise": 0.5, "min_count": 20, "retries": 0, "predictions": "gaussian"}
    tree = {
        "privacy": privacy,
        "federation": {"method": "fedavg", "rounds": 6, "batch_size": 30, "clients_per_round": 1},
        "aggregation": {"scheme": "plain"},
        "run": {"seed": seed_of_the_busy(), "ledger": f"sqlite:///{tmp_path}/l.sqlite"},
    }
    stated = privfair.train(tree, dataset=data).privacy
    rows = stated["by_client"]
    assert (rows["client0"]["rdp"] == max(row["rdp"] for row in rows.values())) == takes_part
    trainings = [Schedule(seed_of_the_busy(), 1, 30, 0.1, 1.0, 1).cohort(n, 3) for n in range(6)].count([0])
    plan = planner(privacy, rounds=6, trainings=trainings, shares_scores=False)
    claim = settled(plan, [(10, 10), (75, 75), (75, 75)]).claim
    assert claim is not None
    assert stated["epsilon"]["rdp"] == pytest.approx(claim.rdp, rel=1e-9)
    assert stated["epsilon_of"] == ("releases" if takes_part else "plan")


def seed_of_the_busy() -> int:
    """A seed with which the first of three clients trains more often than any other, of six rounds of one."""
    for seed in range(100):
        cohorts = [Schedule(seed, 1, 30, 0.1, 1.0, 1).cohort(n, 3)[0] for n in range(6)]
        if cohorts.count(0) > max(cohorts.count(1), cohorts.count(2)):
            return seed
    raise AssertionError("no such seed")
