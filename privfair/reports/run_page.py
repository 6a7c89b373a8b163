"""The report of a run: one page for a reader who is not a programmer."""

from __future__ import annotations

import platform
from pathlib import Path

from privfair import __version__
from privfair.reports import run_words
from privfair.reports.burn_down_figure import burn_down_figure
from privfair.reports.figures import Figure
from privfair.reports.guessing import shown_guesses
from privfair.reports.numbers import delta, epsilon_cell, percent, shown
from privfair.reports.pages import render_page
from privfair.reports.run_facts import RunFacts, read_run, shown_config
from privfair.reports.run_fairness import fairness_of, rounds_of
from privfair.reports.run_privacy import bound, epsilon_by_round, guesses, lifetime, noise_rows, spending


def run_page(path: Path, *, include_private: bool = False) -> str:
    """The page of the run in a folder. Released figures only, unless exact ones are asked for, and allowed."""
    facts = read_run(path, include_private=include_private)
    if not include_private:
        return render_run(facts)
    from privfair.reports.score_spread import score_figures  # torch is behind it

    return render_run(facts, *score_figures(facts))


def render_run(facts: RunFacts, scores: list[Figure] | None = None, scores_missing: str = "") -> str:
    """The page of a run's facts; `scores`: figures of how scores are spread, or why there are none."""
    privacy = facts.released["privacy"]
    epsilon = bound(privacy)
    fairness, rounds = fairness_of(facts), rounds_of(facts)
    account, account_missing = lifetime(facts)
    burn_down = burn_down_figure("run", account) if account else None
    by_round = epsilon_by_round(privacy) if facts.private else None
    drawn = [*(a.figure for f in fairness for a in f.attributes), rounds, by_round, burn_down, *(scores or [])]
    return render_page(
        "run.html",
        title=f"Report on {run_words.subject(facts)}",
        plots=any(figure is not None for figure in drawn),
        unreleased=facts.exact is not None,
        facts=facts,
        released=facts.released,
        privacy=privacy,
        summary=run_words.summary(facts, fairness, epsilon),
        tiles=run_words.tiles(facts, fairness, epsilon),
        settings=run_words.settings(facts),
        holders=run_words.holders(facts),
        notes=[] if facts.exact is None else facts.exact["data"]["notes"],
        seconds=None if facts.exact is None else facts.exact["seconds"]["total"],
        fairness=fairness,
        rounds=rounds,
        scores=scores or [],
        scores_missing=scores_missing,
        epsilon=epsilon,
        shown_epsilon=shown(epsilon),
        delta="" if privacy["delta"] is None else delta(privacy["delta"]),
        account_delta=delta(account.state.budget.delta) if account and account.state.budget else "",
        guess="" if epsilon is None else shown_guesses(epsilon, privacy["delta"]),
        guesses=[] if epsilon is None else guesses(epsilon, privacy["delta"]),
        spending=spending(privacy) if facts.private else [],
        totals=[epsilon_cell(privacy["epsilon"][name], infinite=True) for name in ("pld", "rdp")],
        changes=[[name, epsilon_cell(e, infinite=True)] for name, e in privacy.get("change_of_group", {}).items()],
        by_round=by_round,
        account=account,
        account_missing=account_missing,
        account_left=percent(account.left) if account else "",
        burn_down=burn_down,
        noise=noise_rows(privacy) if facts.private else [],
        wire=run_words.wire(facts),
        absent=run_words.absences(facts),
        warnings=(facts.exact or facts.released).get("warnings", []),
        config=shown_config(facts.config),
        versions=facts.released["versions"],
        made_with=f"privfair {__version__}, Python {platform.python_version()}",
        run=str(facts.path),
    )
