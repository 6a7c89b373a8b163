"""Noise in shares: whom the ε of a run is for, and what is left against the server with a client's help."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from accountant.bounds import spent
from accountant.events import Composed
from privfair.mechanisms.vector_noise import VectorNoise
from privfair.privacy.by_pld import by_pld
from privfair.privacy.planning import Planner, sampling_of
from privfair.terms import Terms


def collusion(terms: Terms, planner: Planner) -> dict[str, Any] | None:
    """Both ε in words and numbers; None where every client adds all of its noise itself."""
    shares = terms.noise_shares
    if shares < 2:
        return None
    pooled = with_collusion(terms, replace(planner, count_releases=terms.count_releases))
    return {
        "nobody": "The run's ε: against the server, which opens nothing, and against every client, which opens sums "
        f"and knows its own share of their noise; at least {shares} shares remain.",
        "server_and_one_client": {name: value if math.isfinite(value) else None for name, value in pooled.items()},
        "assumes": f"The server adds as agreed, at least {shares + 1} vectors in a sum; clients draw their noise, "
        "and no client reads the others' traffic, which its key opens. Every further client that pools what it knows "
        "with another takes one share away.",
    }


def with_collusion(terms: Terms, planner: Planner) -> dict[str, float]:
    """ε of the plan by RDP and PLD where only a client's own share of noise hides its vectors.

    So it is against the server together with one client, whose key opens what others send.
    """
    planner, sampling = planner.under(terms), sampling_of(terms)
    delta = planner.delta
    channels = []
    if terms.client_updates is not None:
        channels = planner.of_one_update(terms.client_updates.noise.alone)
    elif terms.updates is not None:
        channels = planner.rest(sampling, None, terms.updates.noise_multiplier)
    noise = terms.fairness_noise
    if not channels or (planner.work.shares_scores and noise is None):  # something has no noise at all
        return {"rdp": math.inf, "pld": math.inf}
    if noise is not None:
        channels += planner.rest(sampling, noise.alone if isinstance(noise, VectorNoise) else noise, None)
    first, share = 0.0, 0.0
    if planner.together:
        channels = [*planner.fixed(), *channels]
    else:
        first, share = planner.price_of_first_phase("pld")
    together = Composed(tuple(channel.total for channel in channels))
    return {
        "rdp": first + spent(together, delta - share, "rdp").epsilon,
        "pld": first + by_pld(together, delta - share),
    }
