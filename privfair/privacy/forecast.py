"""What a run asks of its clients, priced: before it is asked, so that a run that cannot end does not begin; and after,
so that a bound of the plan is reported only for what stayed within the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from accountant.events import Event, Nothing
from accountant.spending import Spend
from privfair.channels.base import PlannedRequests, PriceList, registered
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Schedule

Kind = tuple[str, str, str, Event]  # client, channel, group, event
Prices = Sequence[PriceList] | Mapping[int, PriceList]  # of all clients, or of some by their numbers


def planned_spends(release_plan: ReleasePlan, plan: Schedule, rounds: range, prices: Prices) -> list[Spend]:
    """The rows of what features are scaled by, of these rounds, and of what follows the last."""
    found = list[Spend]()
    for channel in registered():
        if channel.phase == "scaling":
            found += _rows(channel.name, release_plan, plan, None, prices)
    for number in rounds:
        for channel in registered():
            if channel.in_rounds:
                found += _rows(channel.name, release_plan, plan, number, prices)
    for channel in registered():
        if channel.phase == "after":
            found += _rows(channel.name, release_plan, plan, None, prices)
    return found


def count_spends(release_plan: ReleasePlan, plan: Schedule, prices: Prices) -> list[Spend]:
    """The rows of what precedes the first round."""
    before = [channel.name for channel in registered() if channel.phase == "before"]
    return [spend for name in before for spend in _rows(name, release_plan, plan, None, prices)]


def _rows(name: str, release_plan: ReleasePlan, plan: Schedule, number: int | None, prices: Prices) -> list[Spend]:
    priced = prices if isinstance(prices, Mapping) else dict(enumerate(prices))
    requests = PlannedRequests(plan)(name, release_plan, number)
    return [spend for k, request in requests.items() if k in priced for spend in priced[k].spends(request)]


def beyond_plan(
    released: Iterable[Spend],
    release_plan: ReleasePlan,
    plan: Schedule,
    rounds: int,
    prices: Prices,
    retries: int,
) -> list[str]:
    """Client and channel of what was released more often than planned, or not planned at all."""
    allowed: Counter[Kind] = Counter()
    largest: dict[Kind, int] = {}  # of one release: the steps of a training, or the scores of a message
    for spend in planned_spends(release_plan, plan, range(rounds), prices):
        kind = _kind(spend)
        allowed[kind] += spend.count
        largest[kind] = max(largest.get(kind, 0), spend.count)
    for kind, count in largest.items():
        allowed[kind] += retries * count
    for spend in count_spends(release_plan, plan, prices):
        allowed[_kind(spend)] += release_plan.count_releases
    found: Counter[Kind] = Counter()
    for spend in released:
        if not isinstance(spend.event, Nothing):
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
