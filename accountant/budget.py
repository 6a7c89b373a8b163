"""Lifetime budgets: a Rényi filter per dataset whose order is fixed when the budget is set.

Every release adds its Rényi divergence at the one order α; a release is allowed while no record's sum
exceeds the capacity that still converts to (ε, δ). Because α is fixed beforehand, this stays valid when each
release is chosen after seeing the earlier ones (Feldman, Zrnic 2021, arXiv 2008.11193v3, Theorem 3.1).
Raising a budget keeps its order. The larger claim then holds provided the decision to raise it was not taken
from what the releases said; the ledger keeps who raised it, when and why.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace

from accountant.conversion import epsilon_from_rdp, rdp_capacity
from accountant.errors import InputError, Refused, require_finite, require_positive
from accountant.events import Event
from accountant.filters import choose_order
from accountant.headroom import Headroom, headroom, rounded_down, rounded_up
from accountant.neighbouring import Adjacency, Neighbouring, Unit, as_adjacency, as_unit
from accountant.rdp import rdp
from accountant.spending import require_count


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
        _set(self, "delta", require_delta(self.delta, self.people))
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
        capacity = rdp_capacity(epsilon, require_delta(delta, count), self.order)
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

    def headroom(self, spent: float) -> Headroom:
        """What certainly still fits after this much Rényi divergence, in ε."""
        return headroom(self.capacity - spent, self.order, self.delta)

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
        budget, room = self.budget, self.budget.headroom(self.spent)
        spent, after = (rounded_up(budget.epsilon_at(amount)) for amount in (self.spent, self.spent + self.asked))
        told = f"In ε at this δ and order: {spent} of {budget.epsilon:g} is spent, and this would make it {after}."
        if not room.pure:
            return f"{told} Nothing more fits."
        told += f" What certainly fits, taken together: ε of at most {rounded_down(room.pure)} with δ = 0"
        if room.gaussian:
            told += f", or ε of at most {rounded_down(room.gaussian)} at δ = {budget.delta:g} by Gaussian noise on all"
            told += " records (on samples of them about that, but not certainly)"
        if self.noise_factor is not None:
            told += f"; or all of this with {self.noise_factor:.2f} times the noise"
        return f"{told}."

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[str, Budget, float, float, str, Fit, float | None]]:
        """Survive the way back from a worker process."""
        given = (self.dataset, self.budget, self.spent, self.asked, self.who, self.fit, self.noise_factor)
        return type(self), given


def require_delta(delta: float, people: int | None = None) -> float:
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
