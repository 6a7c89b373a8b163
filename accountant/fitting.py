"""Whether a request fits into a budget, and if not, how much of it would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from accountant.budget import Budget, BudgetExceeded, Fit
from accountant.errors import InputError
from accountant.events import Event
from accountant.spending import Payer, Spend, add_up, worst_record

MOST_NOISE = 64  # a request that needs more times its noise is another one


def costs(budget: Budget, spends: Sequence[Spend]) -> dict[Payer, float]:
    """What each payer would pay for these spends, at the budget's order."""
    asked: dict[Payer, float] = {}
    known: dict[tuple[int, int], float] = {}
    for spend in spends:
        # By identity: a round's spends share a few event objects, and hashing an event costs more than this.
        what = id(spend.event), spend.count
        if what not in known:
            known[what] = budget.cost(spend.event, spend.count)
        payer = spend.payer
        asked[payer] = add_up(asked.get(payer, 0.0), known[what])
    return asked


def added(spent: Mapping[Payer, float], asked: Mapping[Payer, float]) -> dict[Payer, float]:
    """What each payer will have spent afterwards."""
    return {**spent, **{payer: add_up(spent.get(payer, 0.0), cost) for payer, cost in asked.items()}}


def require_room(
    dataset: str,
    budget: Budget,
    spent: Mapping[Payer, float],
    total: Mapping[Payer, float],
    spends: Sequence[Spend],
) -> None:
    """Nothing, if the spends take no record's total over the budget; else `BudgetExceeded` with what fits.

    Only records that the spends touch count: those of another client may have used theirs up.
    """
    after, client, groups = worst_record(total, {spend.payer for spend in spends})
    if after <= budget.capacity:
        return
    # What that very record has spent so far and would pay now: its client's and its groups' share.
    own = [(owner, group) for owner in {"", client} for group in {"", *groups}]
    before = add_up(*(spent.get(payer, 0.0) for payer in own))
    request = costs(budget, spends)
    asked = add_up(*(request.get(payer, 0.0) for payer in own))
    names = [f"client {client!r}"] if client else []
    names += [f"group {', '.join(groups)}"] if groups else []
    who = f"for {', '.join(names)}" if names else "in all"
    fit, factor = what_fits(budget, spent, spends), noise_that_fits(budget, spent, spends)
    raise BudgetExceeded(dataset, budget, before, asked, who, fit, factor)


def what_fits(budget: Budget, spent: Mapping[Payer, float], spends: Sequence[Spend]) -> Fit:
    """How many of the rounds asked for fit, in their order; of a single round, how many releases each."""
    rounds = sorted({spend.round for spend in spends if spend.round is not None})
    if len(rounds) > 1:
        whole_run = [spend for spend in spends if spend.round is None]

        def first_rounds(number: int) -> list[Spend]:
            taken = set(rounds[:number])
            return whole_run + [spend for spend in spends if spend.round in taken]

        return Fit(_most(len(rounds), budget, spent, first_rounds), len(rounds), "rounds")
    most = max(spend.count for spend in spends)

    def at_most(number: int) -> list[Spend]:
        return [replace(spend, count=min(spend.count, number)) for spend in spends if number]

    return Fit(_most(most, budget, spent, at_most), most, "releases")


def noise_that_fits(budget: Budget, spent: Mapping[Payer, float], spends: Sequence[Spend]) -> float | None:
    """A factor, to about 1%, such that all of a request fits with its noise multiplied; None when there is none."""
    from accountant.calibration import scale_noise

    asked: Counter[tuple[Payer, Event]] = Counter()
    for spend in spends:
        asked[spend.payer, spend.event] += spend.count

    def fits(hundredths: int) -> bool:
        scaled = {event: scale_noise(event, hundredths / 100) for _, event in asked}
        cost: dict[Payer, float] = {}
        for (payer, event), count in asked.items():
            cost[payer] = add_up(cost.get(payer, 0.0), budget.cost(scaled[event], count))
        return worst_record(added(spent, cost), cost)[0] <= budget.capacity

    low, high = 100, 200
    try:
        while not fits(high):
            low, high = high, 2 * high
            if high > 100 * MOST_NOISE:
                return None
        while high - low > max(1, low // 100):
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
    except InputError:  # noise that cannot be scaled, or not by so much
        return None
    return high / 100


def _most(limit: int, budget: Budget, spent: Mapping[Payer, float], request: Callable[[int], Sequence[Spend]]) -> int:
    """The largest number up to `limit` whose request fits, by bisection: larger requests cost more."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        asked = costs(budget, request(middle))
        if worst_record(added(spent, asked), asked)[0] <= budget.capacity:
            low = middle
        else:
            high = middle - 1
    return low
