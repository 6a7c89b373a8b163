"""The least noise that meets a target (ε, δ): of one release, or of a planned run with several channels.

Every answer is on the private side: the noise returned has been checked, and its ε is at most the target and within 1%
of it. For one release it comes from the exact δ: nothing is composed, so nothing is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np

from accountant.bounds import METHODS, TOLERATED, Method, spent
from accountant.conversion import gaussian_delta, require_delta
from accountant.errors import InputError, require_positive
from accountant.events import (
    Composed,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    Mechanism,
    Nothing,
    NotPrivate,
    OnGrid,
    PoissonSampled,
    Repeated,
    map_parts,
)
from accountant.pld_profiles import grid_pairs
from accountant.worst_case import costliest

MARGIN = 1e-10  # divergences are computed to about 1e-13 of themselves
TIGHTEST, LOOSEST = 1e-12, 1e12  # noise multipliers searched
CLOSE = 0.995  # the search stops when epsilon is at least this much of the target
SCALES = (1e-9, 1e15)


def calibrate_release(event: Event, epsilon: float, delta: float = 1e-5) -> Event:
    """The event with the least noise at which one release of it is (ε, δ)-private; its own noise is ignored.

    Unsampled mechanisms by their exact δ. Sampled ones through γ H(log(1 + (e^ε − 1)/γ)) = δ (Balle, Barthe,
    Gaboardi 2018, arXiv 1807.01647v2, Theorems 8 and 9).
    """
    return _calibrated(event, require_positive("epsilon", epsilon), require_delta(delta))


def exact_delta(mechanism: Mechanism, epsilon: float) -> float:
    """δ(ε) of one unsampled release, exactly: a closed form, or the sum over the grid."""
    if isinstance(mechanism, Gaussian):
        return gaussian_delta(epsilon, mechanism.noise_multiplier)
    if isinstance(mechanism, Laplace):
        return -math.expm1(min(0.0, (epsilon - 1.0 / mechanism.noise_multiplier) / 2.0))
    if isinstance(mechanism, OnGrid):
        pair, _ = grid_pairs(mechanism)
        above = pair.log_ratio > epsilon
        mass = np.exp(pair.log_q[above] + pair.log_ratio[above])
        return math.fsum(mass * -np.expm1(epsilon - pair.log_ratio[above]))
    raise InputError("event", "must be a mechanism", mechanism)


@singledispatch
def _calibrated(event: Event, epsilon: float, delta: float) -> Event:
    remedy = "Use calibrate(), which takes any composition."
    raise InputError("event", "must be one release", (event, epsilon, delta), remedy)


@_calibrated.register
def _sampled(event: PoissonSampled | FixedSizeSampled, epsilon: float, delta: float) -> Event:
    if isinstance(event, PoissonSampled) and event.moves_both_ways:
        remedy = "Use calibrate(event, …), which searches with the composed bounds."
        raise InputError("event", "must not be a clipped sum under replace-one", event, remedy)
    if delta >= event.rate:
        remedy = "Releasing a sampled record as it is would meet it. Choose δ far below the rate."
        raise InputError("delta", f"must be below the sampling rate {event.rate:g}", delta, remedy)
    inner = math.log1p(math.expm1(epsilon) / event.rate) if epsilon < 30 else epsilon - math.log(event.rate)
    return replace(event, event=_mechanism(event.event, inner, delta / event.rate))


@_calibrated.register
def _mechanism(event: Mechanism, epsilon: float, delta: float) -> Mechanism:
    """The smallest noise whose exact δ at ε is at most the target: δ falls as noise grows.

    Gaussian: Balle, Wang 2018 (arXiv 1805.06530v2), Algorithm 1, solved by bisection.
    """
    if delta == 0 and isinstance(event, Gaussian):
        raise InputError("delta", "must be above 0 for Gaussian noise", delta, "Use Laplace noise for δ = 0.")

    def enough(multiplier: float) -> bool:
        noisy = replace(event, noise_scale=multiplier * event.sensitivity)
        return exact_delta(noisy, epsilon) <= delta * (1.0 - MARGIN)

    if isinstance(event, Laplace) or (isinstance(event, OnGrid) and delta == 0):
        multiplier = (1.0 + MARGIN) / (epsilon - 2.0 * math.log1p(-delta))  # on a grid: pure, as δ = 0
    else:
        multiplier = _smallest(enough)
    return replace(event, noise_scale=multiplier * event.sensitivity)


def _smallest(enough: Callable[[float], bool]) -> float:
    """The smallest multiplier that is enough, from above, to 1e-10 of itself."""
    high = 1.0
    while not enough(high):
        high *= 2.0
        if high > LOOSEST:
            raise InputError("epsilon and delta", "must be within reach of some noise", high)
    low = high / 2.0
    while enough(low):
        low, high = low / 2.0, low
        if low < TIGHTEST:
            raise InputError("delta", "must be small enough to need noise", low)
    while high / low > 1.0 + 1e-10:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Channel:
    """What one channel of one client releases over the whole run: `count` times the event.

    Its noise is multiplied by the calibrated factor; `fixed` noise stays as it is.
    """

    name: str
    event: Event
    count: int = 1
    fixed: bool = False

    def scaled(self, factor: float) -> Channel:
        """The channel with its noise multiplied, unless fixed."""
        return self if self.fixed else replace(self, event=scale_noise(self.event, factor))

    @property
    def total(self) -> Event:
        """All its releases."""
        return Repeated(self.event, self.count)


Schedule = Mapping[str, tuple[Channel, ...]]


@dataclass(frozen=True)
class Calibration:
    """The noise of a plan that meets a target, and what it then costs."""

    factor: float
    """What all noise that is not fixed was multiplied by."""
    plan: Schedule
    """The plan with its calibrated noise, by client."""
    epsilon: float
    """ε of the worst client, at most the target."""
    delta: float
    method: Method
    worst_client: str
    target: float

    def channel(self, name: str, client: str | None = None) -> Channel:
        """One calibrated channel: of this client, or of the worst one."""
        channels = {channel.name: channel for channel in self.plan[client or self.worst_client]}
        if name not in channels:
            raise InputError("channel", f"must be one of {sorted(channels)}", name)
        return channels[name]

    def noise(self, client: str | None = None) -> dict[str, float]:
        """The noise scale of every channel: of this client, or of the worst one."""
        channels = self.plan[client or self.worst_client]
        return {channel.name: noise_scale(channel.event) for channel in channels}

    def by_client(self) -> dict[str, float]:
        """ε of every client under the calibrated plan."""
        return {client: _spent_by(channels, self.delta, self.method) for client, channels in self.plan.items()}

    def by_channel(self, client: str | None = None) -> dict[str, float]:
        """ε of every channel by itself, of this client or of the worst one."""
        channels = self.plan[client or self.worst_client]
        return {c.name: _spent_by((c,), self.delta, self.method) for c in channels}


def calibrate(
    plan: Event | Iterable[Channel] | Mapping[str, Iterable[Channel]],
    epsilon: float,
    delta: float = 1e-5,
    method: Method = "rdp",
) -> Calibration:
    """The plan with the least common noise factor at which the worst client's ε is at most the target.

    A plan is one event, one client's channels, or the channels of every client. The proportions between
    channels stay as given: all noise that is not fixed is multiplied by one factor.
    """
    target, delta = require_positive("epsilon", epsilon), require_delta(delta)
    if method not in METHODS:
        raise InputError("method", f"must be one of {list(METHODS)}", method)
    clients = _as_plan(plan)
    if all(channel.fixed for channels in clients.values() for channel in channels):
        raise InputError("plan", "must have a channel whose noise may change", sorted(clients))
    different = {channels: client for client, channels in clients.items()}

    def worst_by(how: Method, factor: float) -> tuple[float, str]:
        events: dict[Event, str] = {}
        for channels, client in different.items():
            events.setdefault(_total(channel.scaled(factor) for channel in channels), client)
        return _worst(events, delta, how)

    try:
        factor = search_factor(lambda f: worst_by("rdp", f)[0], target, delta)
    except InputError:
        if method == "rdp":
            raise
        # What is fixed may be too costly by RDP and fit by PLD.
        fixed = {_total(c for c in channels if c.fixed): client for client, channels in clients.items()}
        if _worst(fixed, delta, "pld")[0] >= target:
            raise
        factor = 1.0
    if method == "pld":  # PLD is below RDP, so that is a good place to start from
        factor = search_factor(lambda f: worst_by("pld", f)[0], target, delta, start=factor)
    found, client = worst_by(method, factor)
    scaled = {name: tuple(c.scaled(factor) for c in channels) for name, channels in clients.items()}
    return Calibration(factor, scaled, found, delta, method, client, target)


def search_factor(epsilon_of: Callable[[float], float], target: float, delta: float, start: float = 1.0) -> float:
    """A factor with 0.995 target ≤ ε(factor) ≤ target, for ε falling in the factor.

    False position on log ε against log factor, halving the bracket whenever that stalls. Only factors
    whose ε has been computed and is at most the target are ever returned.
    """
    enough, least = start, epsilon_of(start)
    little, most = enough, least
    while least > target:
        little, most = enough, least
        if enough > SCALES[1]:
            remedy = "Fixed channels alone may exceed it, a channel is not private, or δ is 0 with Gaussian noise."
            raise InputError("epsilon", "must be within reach of some noise", target, remedy)
        enough *= 4.0 if math.isinf(least) else max(1.05, min(64.0, 1.02 * least / target))
        least = epsilon_of(enough)
    while most <= target and least < CLOSE * target:
        enough, least = little, most
        if little < SCALES[0]:
            remedy = "Records are sampled so rarely that δ alone covers it. Choose δ far below the sampling rates."
            raise InputError("delta", "must be small enough to need noise", delta, remedy)
        little *= 0.25 if most == 0 else max(1 / 64, min(0.95, 0.98 * most / target))
        most = epsilon_of(little)
    for attempt in range(200):
        if least >= CLOSE * target or enough / little < 1.0 + 1e-12:
            break
        share = 0.5
        if attempt % 3 and math.isfinite(most) and least > 0:
            aim = math.log(most) - math.log(target * (1.0 + CLOSE) / 2.0)
            share = min(0.999, max(0.001, aim / (math.log(most) - math.log(least))))
        middle = little * (enough / little) ** share
        found = epsilon_of(middle)
        if found <= target:
            enough, least = middle, found
        else:
            little, most = middle, found
    return enough


def scale_noise(event: Event, factor: float) -> Event:
    """The event with its noise multiplied by the factor."""

    def scaled(part: Event) -> Event:
        if isinstance(part, Mechanism):
            return replace(part, noise_scale=part.noise_scale * factor)
        if isinstance(part, PoissonSampled | FixedSizeSampled):
            return replace(part, event=replace(part.event, noise_scale=part.event.noise_scale * factor))
        if isinstance(part, Nothing | NotPrivate):
            return part
        raise InputError("event", "must have noise to scale", (part, factor))

    return map_parts(event, scaled)


def noise_scale(event: Event) -> float:
    """The noise scale of an event with one kind of noise; NaN when it has none or several."""
    if isinstance(event, Mechanism):
        return event.noise_scale
    if isinstance(event, PoissonSampled | FixedSizeSampled | Repeated):
        return noise_scale(event.event)
    return math.nan


def _worst(events: Mapping[Event, str], delta: float, method: Method) -> tuple[float, str]:
    """ε of the costliest composition and the client whose it is."""
    slack = TOLERATED if method == "pld" else 1.0  # PLD may be 1% above RDP
    found = costliest(events, lambda e: spent(e, delta).epsilon, lambda e: spent(e, delta, method), slack)
    return (found[0].epsilon, events[found[1]]) if found else (0.0, "")


def _total(channels: Iterable[Channel]) -> Event:
    return Composed(tuple(channel.total for channel in channels))


def _spent_by(channels: tuple[Channel, ...], delta: float, method: Method) -> float:
    return spent(_total(channels), delta, method).epsilon


def _as_plan(plan: Event | Iterable[Channel] | Mapping[str, Iterable[Channel]]) -> dict[str, tuple[Channel, ...]]:
    if isinstance(plan, Event):
        return {"": (Channel("release", plan),)}
    clients = {k: tuple(v) for k, v in plan.items()} if isinstance(plan, Mapping) else {"": tuple(plan)}
    for client, channels in clients.items():
        names = [channel.name for channel in channels if isinstance(channel, Channel)]
        if len(names) != len(channels) or len(set(names)) != len(names) or not names:
            raise InputError(f"the plan of client {client!r}", "must be channels of different names", channels)
    if not clients:
        raise InputError("plan", "must have at least one client", plan)
    return clients
