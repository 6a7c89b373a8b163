"""What a run will still ask of its clients, priced before it is asked: a run that cannot end should not begin."""

from __future__ import annotations

from collections.abc import Sequence

from accountant.spending import Spend
from privfair.interfaces import ServerState
from privfair.messages import EvaluateRequest, LocalWork, Request, ScoreRelease, ScoresRequest, Task, TrainRequest
from privfair.privacy.pricing import PriceList
from privfair.round import Plan


def remaining_spends(state: ServerState, plan: Plan, rounds: int, prices: Sequence[PriceList]) -> list[Spend]:
    """The rows of all rounds to come and of the final evaluation."""
    terms, spends = state.terms, list[Spend]()

    def add(client: int, request: Request) -> None:
        spends.extend(prices[client].spends(request))

    for number in range(state.round, rounds):
        if terms.sharing is not None:
            for client, quotas in enumerate(terms.sharing.quotas):
                rates = None if terms.sharing.rates is None else terms.sharing.rates[client]
                if quotas.any():
                    release = ScoreRelease(terms.sharing.noise, rates)
                    add(client, ScoresRequest(number, state.model, quotas, release))
        local: LocalWork = plan.work(number, 0.0)
        for client in plan.cohort(number, state.clients):
            if terms.records[client] > 0:
                work = terms.work(client, local)
                add(client, TrainRequest(number, state.model, Task(), work, weight=0.0))
    if terms.evaluation is not None:
        for client in range(state.clients):
            add(client, EvaluateRequest(state.model, terms.evaluation))
    return spends
