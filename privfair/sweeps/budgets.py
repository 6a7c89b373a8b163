"""Why data with a lifetime budget are not swept."""

from __future__ import annotations

from accountant.errors import Refused
from privfair.config import Config
from privfair.privacy.books import budget_at_hand, require_its_budget

NOT_COVERED = "hyper-parameters chosen on this data: not covered by the ε of any single run"


def require_no_budget(config: Config, runs: int) -> None:
    """Nothing, unless the dataset has a lifetime budget in the ledger that this configuration names.

    A sweep looks at every run's figures to choose among them. On data with a budget all of its runs would have to be
    reserved before the first, and their figures released with noise. The plan of a run depends on its released counts,
    so that sum is not known before the first release: the sweep is refused, private or not.
    """
    where, name, budget = budget_at_hand(config, config.data.name)
    if budget is not None:
        raise Refused(
            f"Dataset {name!r} has a lifetime budget of ε = {budget.epsilon:g}, δ = {budget.delta:g} in {where}, and a "
            f"sweep of {runs} runs looks at the figures of every run to choose among them. All of it would have to be "
            "reserved before the first run, which is not possible: what a run costs is planned from counts that it "
            "releases itself. Sweep on public or simulated data, then `privfair train` once on these."
        )
    require_its_budget(config, name, where)
