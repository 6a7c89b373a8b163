"""Lifetime budgets: a Rényi filter for each dataset, whose order is fixed when the budget is set.

Every release adds its Rényi divergence at the one order α. A release is allowed while no record's sum exceeds the
capacity, the most that still converts to (ε, δ). The search for the best order and privacy loss distributions hold for
plans fixed beforehand: when a later release depends on what earlier ones showed, choosing the order, or the follow-up,
afterwards can break the stated δ. A filter at one fixed order cannot be broken that way: however releases depend on
earlier outputs, everything that got through has a divergence of at most the capacity at this order (Feldman, Zrnic
2021, arXiv 2008.11193v4, Theorems 3.1 and 4.3).

Raising a budget keeps its order. The larger claim then holds provided the decision to raise it was not taken from what
the releases showed; the ledger keeps who raised it, when and why.

What is left of a filter is also given in ε. An ε by itself does not say how much divergence a release costs; for two
kinds of release it does (`Remaining`), and for them the answers are exact or on the safe side.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from accountant.conversion import capacities, epsilon_from_rdp, gaussian_epsilon, rdp_capacity, require_delta
from accountant.errors import InputError, Refused, require_finite, require_positive
from accountant.events import Adjacency, Event, Neighbouring, Unit, as_adjacency, as_unit
from accountant.rdp import order_grid, rdp
from accountant.spending import Payer, Spend, add_up, require_count, worst_record

SAFETY = 1.0 - 1e-9  # sums of many costs are rounded up, each by less than this
DIGITS = 3
MOST_NOISE = 64  # a request that needs more times its noise is another one


def choose_order(epsilon: float, delta: float) -> float:
    """The order at which a budget of (ε, δ) holds the most Gaussian releases; a public rule of ε and δ alone.

    A Gaussian release costs α/(2z²), so the best order maximises capacity(α)/α. Poisson-sampled releases
    of small rate cost nearly in proportion to α as well, up to the order this rule finds. δ = 0 needs the
    infinite order: pure differential privacy.
    """
    require_positive("epsilon", epsilon)
    if require_delta(delta) == 0:
        return math.inf
    orders = np.array(order_grid(2.0**-10, 2.0**20, 32))
    return float(orders[int(np.argmax(capacities(epsilon, delta, orders) / orders))])


@dataclass(frozen=True)
class Remaining:
    """The largest ε of further releases, all taken together, that certainly fit; 0 when nothing does.

    gaussian: at the budget's δ, of Gaussian noise on all records (not on a sample of them).
    pure: with δ = 0, whatever the releases are.
    """

    gaussian: float
    pure: float


def remaining(left: float, order: float, delta: float) -> Remaining:
    """What fits into `left`, Rényi divergence at the order.

    pure: max(r, √(2r/α)). What is ε-private with δ = 0 has a Rényi divergence of at most min(ε, αε²/2) (Bun, Steinke
    2016, arXiv 1605.02065v1, Proposition 3.3; and no Rényi divergence is above the largest log-ratio).

    gaussian: ε at δ of the Gaussian release whose Rényi divergence α/(2z²) is r, from below. Gaussian releases compose
    to a Gaussian release, whose exact ε (Balle, Wang 2018, arXiv 1805.06530v2, Theorem 8) falls as z grows: all that
    have a smaller ε together, by whatever bound, cost less.
    """
    if not left > 0:
        return Remaining(0.0, 0.0)
    r = left * SAFETY
    separation = math.sqrt(2.0 * r / order)
    return Remaining(gaussian_epsilon(separation, delta), max(r, separation))


def rounded_down(epsilon: float) -> str:
    """An ε that fits, to three digits: 1.77."""
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - DIGITS + 1)
    return f"{math.floor(epsilon / unit) * unit:.{DIGITS}g}"


def rounded_up(epsilon: float) -> str:
    """An ε that was spent, to three digits: 2.29."""
    if not 0 < epsilon < math.inf:
        return "∞" if epsilon > 0 else "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - DIGITS + 1)
    return f"{math.ceil(epsilon / unit - 1e-9) * unit:.{DIGITS}g}"


@dataclass(frozen=True)
class Budget:
    """(ε, δ) for the lifetime of a dataset, as the order and capacity of a Rényi filter.

    people: the number of records as released, where one was; δ must then be below 1/people.
    order: left out, it follows from ε and δ by a public rule. capacity: left out, it follows from the others.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    unit: Unit = Unit.RECORD
    people: int | None = None
    order: float = 0.0
    capacity: float = 0.0

    def __post_init__(self) -> None:
        """Check, and fill in what follows."""
        _set(self, "epsilon", require_positive("epsilon", self.epsilon))
        _set(self, "delta", require_budget_delta(self.delta, self.people))
        _set(self, "adjacency", as_adjacency(self.adjacency))
        _set(self, "unit", as_unit(self.unit))
        if not self.order:
            _set(self, "order", choose_order(self.epsilon, self.delta))
        if not require_finite("order", self.order) > 1:
            raise InputError("order", "must be above 1", self.order)
        if self.capacity:
            require_positive("capacity", self.capacity)
            _require_honest(self)
            return
        _set(self, "capacity", rdp_capacity(self.epsilon, self.delta, self.order))
        # Below that, only the bound by total variation is left, which lets nothing of use through.
        if self.capacity <= 2 * self.delta**2:
            rule = f"must leave room for ε = {self.epsilon:g} at δ = {self.delta:g}"
            raise InputError("order", rule, self.order, "Leave it out.")

    @property
    def neighbouring(self) -> Neighbouring:
        """What the budget protects: the adjacency and unit every release must have."""
        return Neighbouring(self.adjacency, self.unit)

    def resized(self, epsilon: float, delta: float, people: int | None = None) -> Budget:
        """The same filter with another capacity: the order stays as it was first fixed.

        An ε that this order cannot express is refused: it would leave no capacity, and nothing could ever be released.
        """
        require_positive("epsilon", epsilon)
        count = self.people if people is None else people
        capacity = rdp_capacity(epsilon, require_budget_delta(delta, count), self.order)
        if capacity <= 2 * delta**2:
            least = smallest_epsilon(delta, self.order)
            rule = f"must be above {least:.4g} at δ = {delta:g} for a budget of order {self.order:g}"
            remedy = "The order was fixed by the first budget. Any larger ε works; what is already spent still counts."
            raise InputError("epsilon", rule, epsilon, remedy)
        return replace(self, epsilon=epsilon, delta=delta, capacity=capacity, people=count)

    def cost(self, event: Event, count: int = 1) -> float:
        """Rényi divergence of `count` such events at the budget's order."""
        one = float(rdp(event, (self.order,))[0])
        return math.nextafter(one * count, math.inf) if one and count > 1 else one

    def epsilon_at(self, spent: float) -> float:
        """ε that this much Rényi divergence at the budget's order stands for; 0 when nothing was spent."""
        if spent <= 0:
            return 0.0
        return float(epsilon_from_rdp((self.order,), (spent,), self.delta)[0])

    def remaining(self, spent: float) -> Remaining:
        """What certainly still fits after this much Rényi divergence, in ε."""
        return remaining(self.capacity - spent, self.order, self.delta)

    def to_json(self) -> str:
        """The budget as one line of JSON, as the ledger keeps it."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Budget:
        """The budget kept in the ledger."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Fit:
    """How much of a request fits into a budget: `fits` of `asked` rounds (or releases)."""

    fits: int
    asked: int
    unit: str

    def __str__(self) -> str:
        """For example "12 of 40 rounds fit"."""
        return f"{self.fits} of {self.asked} {self.unit} fit"


class BudgetExceeded(Refused):
    """A release would take some record over its dataset's budget; nothing was reserved."""

    def __init__(
        self,
        dataset: str,
        budget: Budget,
        spent: float,
        asked: float,
        who: str,
        fit: Fit,
        noise_factor: float | None = None,
    ) -> None:
        """`spent` and `asked`: Rényi divergence at the budget's order, of the record that would exceed it.

        noise_factor: the whole request fits with so many times its noise; None where no noise is known to do.
        """
        self.dataset = dataset
        self.budget = budget
        self.spent = spent
        self.asked = asked
        self.who = who
        self.fit = fit
        self.noise_factor = noise_factor
        self.left = max(0.0, budget.capacity - spent)
        share = 100 * self.left / budget.capacity
        super().__init__(
            f"Dataset {dataset!r}: the budget (ε = {budget.epsilon:g}, δ = {budget.delta:g}) does not allow "
            f"this. Left {who}: {share:.3g}% (Rényi divergence {self.left:.6g} of {budget.capacity:.6g} at "
            f"order {budget.order:g}); asked: {asked:.6g}. {self._in_epsilon()} {fit}. "
            f"Ask for less, add more noise, or have the budget raised."
        )

    def _in_epsilon(self) -> str:
        """The same in ε: what is spent, what it would be, and what certainly fits."""
        budget, room = self.budget, self.budget.remaining(self.spent)
        spent, after = (rounded_up(budget.epsilon_at(amount)) for amount in (self.spent, self.spent + self.asked))
        reported = f"In ε at this δ and order: {spent} of {budget.epsilon:g} is spent, and this would make it {after}."
        if not room.pure:
            return f"{reported} Nothing more fits."
        reported += f" What certainly fits, taken together: ε of at most {rounded_down(room.pure)} with δ = 0"
        if room.gaussian:
            reported += (
                f", or ε of at most {rounded_down(room.gaussian)} at δ = {budget.delta:g} by Gaussian noise on all"
            )
            reported += " records (on samples of them about that, but not certainly)"
        if self.noise_factor is not None:
            reported += f"; or all of this with {self.noise_factor:.2f} times the noise"
        return f"{reported}."

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[str, Budget, float, float, str, Fit, float | None]]:
        """Survive the way back from a worker process."""
        given = (self.dataset, self.budget, self.spent, self.asked, self.who, self.fit, self.noise_factor)
        return type(self), given


def require_budget_delta(delta: float, people: int | None = None) -> float:
    """δ, if it is in (0, 1) and below 1/people where a count is known; otherwise `InputError`.

    With δ ≥ 1/n, publishing one record at random would count as private.
    """
    require_positive("delta", delta)
    if delta >= 1:
        raise InputError("delta", "must be below 1", delta)
    if people is not None:
        require_count("people", people, at_least=1)
        if delta >= 1 / people:
            raise InputError(
                "delta",
                f"must be below 1/{people}, one over the number of records",
                delta,
                "Otherwise publishing somebody's record in the clear would pass as private.",
            )
    return float(delta)


def smallest_epsilon(delta: float, order: float) -> float:
    """The ε that no Rényi divergence at all converts to at this order: budgets must be above it.

    The conversion of `epsilon_from_rdp` at divergence 0: log(1 − 1/α) − log(αδ)/(α − 1).
    """
    return max(0.0, math.log1p(-1.0 / order) - (math.log(order) + math.log(delta)) / (order - 1.0))


def _require_honest(budget: Budget) -> None:
    """A stated capacity must not let through more than (ε, δ) at the order; up to rounding."""
    most = rdp_capacity(budget.epsilon, budget.delta, budget.order)
    if budget.capacity > most * (1.0 + 1e-12):
        rule = f"must be at most {most:.6g}, what ε = {budget.epsilon:g} at δ = {budget.delta:g} allows at its order"
        raise InputError("capacity", rule, budget.capacity, "Leave it out.")


def _set(budget: Budget, name: str, value: object) -> None:
    object.__setattr__(budget, name, value)  # frozen to everybody but its own constructor


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
    """Raise `BudgetExceeded`, with what fits, if the spends take some record's total over the budget.

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


def how_often(budget: Budget, spent: Mapping[Payer, float], spends: Sequence[Spend]) -> int:
    """How many times the whole request still fits, one after the other; at most 1,000."""
    return _most(1000, budget, spent, lambda number: [replace(spend, count=spend.count * number) for spend in spends])


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
