"""What a run asks of its clients, priced: before it is asked, so that a run that cannot end does not begin; and after,
so that a bound of the plan is told only for what stayed within the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from accountant.events import Event
from accountant.spending import Spend
from privfair.federated.interfaces import ServerState
from privfair.federated.messages import (
    CountsRequest,
    EmbeddingsRequest,
    EvaluateRequest,
    LocalWork,
    Request,
    ScoreRelease,
    ScoresRequest,
    Sealed,
    Task,
    TrainRequest,
)
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Schedule
from privfair.privacy.pricing import PriceList

Kind = tuple[str, str, str, Event]  # client, channel, group, event


def planned_spends(
    state: ServerState, plan: Schedule, rounds: int, prices: Sequence[PriceList] | Mapping[int, PriceList]
) -> list[Spend]:
    """The rows of all rounds to come and of the final evaluation; with a mapping, those of its clients."""
    release_plan, spends = state.release_plan, list[Spend]()

    def add(client: int, request: Request) -> None:
        if not isinstance(prices, Mapping) or client in prices:
            spends.extend(prices[client].spends(request))

    for number in range(state.round, rounds):
        if release_plan.sharing is not None:
            for client, quotas in enumerate(release_plan.sharing.quotas):
                rates = None if release_plan.sharing.rates is None else release_plan.sharing.rates[client]
                if quotas.any():
                    release = ScoreRelease(release_plan.sharing.noise, rates)
                    add(client, ScoresRequest(number, state.model, quotas, release))
        if release_plan.embedding is not None:
            for client in release_plan.embedding.asked(release_plan.records):
                cells = release_plan.embedding.cells[client]
                add(client, EmbeddingsRequest(number, state.model, cells, release_plan.embedding.noise))
        local: LocalWork = plan.work(number, 0.0)
        for client in plan.cohort(number, state.clients):
            if release_plan.records[client] > 0:
                work = release_plan.work(client, local)
                add(client, TrainRequest(number, state.model, Task(), work, 0.0, release=release_plan.release(client)))
    if release_plan.evaluation is not None:
        for client in range(state.clients):
            add(client, EvaluateRequest(state.model, release_plan.evaluation))
    return spends


def count_spends(release_plan: ReleasePlan, prices: Sequence[PriceList] | Mapping[int, PriceList]) -> list[Spend]:
    """The rows of the counts."""
    everyone = prices.values() if isinstance(prices, Mapping) else prices
    return [spend for price in everyone for spend in price.spends(CountsRequest(release_plan.counting))]


def beyond_plan(
    released: Iterable[Spend],
    release_plan: ReleasePlan,
    plan: Schedule,
    rounds: int,
    prices: Sequence[PriceList] | Mapping[int, PriceList],
    retries: int,
) -> list[str]:
    """Client and channel of what was released more often than planned, or not planned at all."""
    allowed: Counter[Kind] = Counter()
    largest: dict[Kind, int] = {}  # of one release: the steps of a training, or the scores of a message
    everything = planned_spends(ServerState(0, Sealed(0, b""), release_plan, {}), plan, rounds, prices)
    for spend in everything:
        kind = _kind(spend)
        allowed[kind] += spend.count
        largest[kind] = max(largest.get(kind, 0), spend.count)
    for kind, count in largest.items():
        allowed[kind] += retries * count
    for spend in count_spends(release_plan, prices):
        allowed[_kind(spend)] += release_plan.count_releases
    found: Counter[Kind] = Counter()
    for spend in released:
        found[_kind(spend)] += spend.count
    return sorted(
        {
            f"{client}: {channel}"
            for (client, channel, group, event), n in found.items()
            if n > allowed[client, channel, group, event]
        }
    )


def _kind(spend: Spend) -> Kind:
    return spend.client, spend.channel, spend.group, spend.event
