"""The paper's experiments: their settings as the appendix gives them, and how claims are decided."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from accountant.errors import InputError
from privfair.sweeps.jobs import Job
from privfair.sweeps.journal import COLUMNS
from privfair.sweeps.paper import EXPERIMENTS
from privfair.sweeps.paper.claims import (
    AreaClaim,
    Claim,
    Evidence,
    Missing,
    at_end,
    average,
    best_accuracy,
    halvings,
    judge,
    level,
    mean_of,
    t_interval,
)

REAL = ("communities", "compas")


@cache
def jobs_of(name: str, quick: bool = False) -> list[Job]:
    return EXPERIMENTS[name].jobs(quick=quick)


def configs(name: str, series: str) -> list[Any]:
    return [job.config for job in jobs_of(name) if job.series == series]


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("quick", [True, False])
def test_jobs_are_valid_and_different(name: str, quick: bool) -> None:
    jobs = jobs_of(name, quick)
    assert len({job.key for job in jobs}) == len(jobs)
    assert len({job.config.run.seed for job in jobs}) == (
        EXPERIMENTS[name].seeds if not quick else EXPERIMENTS[name].quick_seeds
    )
    if quick:
        assert len(jobs) <= 160
    assert {job.config.run.engine for job in jobs} == {"stacked"}


@pytest.mark.parametrize("name", REAL)
def test_settings_on_real_data_are_those_of_the_appendix(name: str) -> None:
    for series, step, epochs, most in (
        ("ours", 0.01, 50, 10), ("local group fairness", 0.05, 50, 100), ("FairFed, β = 0.5", 0.05, 50, 10),
    ):  # fmt: skip
        found = configs(name, series)
        assert len(found) == 500
        assert (min(c.fairness.strength for c in found), max(c.fairness.strength for c in found)) == (1e-5, most)
        for config in found:
            f = config.federation
            assert (f.learning_rate, f.local_epochs, f.rounds, f.batch_size) == (step, epochs, 100, 100)
            assert (f.learning_rate_decay, f.clients_per_round) == (0.99, None)
            assert (config.model.name, config.model.hidden, config.fairness.kernel) == ("mlp", (16,), "energy")
            assert config.fairness.samples == 100
    (agnostic, *_) = configs(name, "agnostic")
    assert (agnostic.federation.local_epochs, agnostic.federation.learning_rate) == (10, 0.05)
    (centralized, *_) = configs(name, "centralized")
    assert centralized.federation.rounds * centralized.federation.local_epochs == 1000
    assert centralized.federation.batch_size >= 1_000_000  # one full-gradient step an epoch
    assert (centralized.federation.learning_rate, centralized.federation.learning_rate_decay) == (0.05, 1.0)
    steps = sorted({c.federation.fedfb_step for c in configs(name, "FedFB")})
    assert steps == [0.001, 0.05, 0.08, 0.1, 0.2, 0.5, 1.0, 2.0]
    assert {c.federation.learning_rate for c in configs(name, "FedFB")} == {0.001}
    assert {j.series for j in jobs_of(name)} == {
        "ours", "centralized", "local group fairness", "FairFed, β = 0.5", "FairFed, β = 1", "FairFed, β = 2",
        "agnostic", "FedFB",
    }  # fmt: skip


def test_settings_on_synthetic_data_are_those_of_the_appendix() -> None:
    for config in configs("synthetic", "ours"):
        f = config.federation
        assert (f.learning_rate, f.local_epochs, f.rounds, f.learning_rate_decay) == (0.05, 50, 100, 1.0)
        assert (config.data.name, config.model.name) == ("synthetic", "logistic")
    strengths = sorted({c.fairness.strength for c in configs("synthetic", "ours")})
    assert len(strengths) == 50
    assert strengths[:: len(strengths) - 1] == [1e-5, 100]
    assert np.allclose(np.diff(np.log(strengths)), np.log(1e7) / 49, rtol=1e-4)


def test_settings_of_the_ablations() -> None:
    ours = configs("heterogeneity", "ours")
    assert {c.fairness.strength for c in ours} == {50.0}
    assert sorted({c.data.options["alpha"] for c in ours})[::10] == [0.5, 1.0]
    assert {c.federation.fairfed_beta for c in configs("heterogeneity", "FairFed")} == {0.5}
    assert configs("heterogeneity-sizes", "ours")[0].data.options["sizes"] == [50, 150, 250, 100, 50, 100]
    sizes = {job.config.fairness.samples for job in jobs_of("samples")}
    assert {20, 50, 100} < sizes
    convergence = configs("convergence", "ours")
    assert {(c.fairness.strength, c.run.evaluate_every, c.data.name) for c in convergence} == {(0.5, 1, "communities")}


def test_private_runs_differ_in_noise_only() -> None:
    jobs = jobs_of("private")
    assert {job.epsilon for job in jobs} == {1.0, 3.0, 10.0, math.inf}
    assert {job.config.privacy.epsilon or math.inf for job in jobs} == {job.epsilon for job in jobs}
    private = [job.config for job in jobs if job.config.privacy.enabled]
    assert {(c.privacy.predictions, c.privacy.kernel_correction) for c in private} == {
        (mechanism, correction) for mechanism in ("gaussian", "laplace") for correction in ("none", "deconvolve")
    }
    assert {c.privacy.updates for c in private} == {"dp_sgd"}
    assert all(c.run.reproducible_noise and c.privacy.delta == 1e-5 for c in private)
    for tables in (job.config.as_tables() for job in jobs):
        assert {**tables["fairness"], "lambda": 0} == {**jobs[0].config.as_tables()["fairness"], "lambda": 0}
        assert tables["federation"] == jobs[0].config.as_tables()["federation"]
    series = {(job.series, job.epsilon) for job in jobs}
    assert len(series) == 13
    assert len(jobs) == 13 * 10 * len({job.value for job in jobs})


def test_overrides_reach_every_run_but_not_what_is_varied() -> None:
    jobs = EXPERIMENTS["compas"].jobs(quick=True, overrides=["federation.local_epochs=10"])
    assert {job.config.federation.local_epochs for job in jobs} == {10}
    with pytest.raises(InputError, match=r"--set must not be fairness\.lambda, which compas varies itself"):
        EXPERIMENTS["compas"].jobs(quick=True, overrides=["fairness.lambda=1"])


# --- claims -------------------------------------------------------------------------------------------------


def evidence(
    table: dict[tuple[str, float | None], list[tuple[float, float]]], epsilons: dict[str, float] | None = None
) -> Evidence:
    """Runs by (series, value): (accuracy, unfairness) of seeds 0, 1, …"""
    rows = [
        {
            **dict.fromkeys(COLUMNS), "series": series, "method": "mmd_fedavg", "value": value, "seed": seed,
            "epsilon_target": (epsilons or {}).get(series, math.inf), "status": "done", "accuracy": q, "unfairness": u,
            "baseline_accuracy": 0.5,
        }
        for (series, value), runs in table.items()
        for seed, (q, u) in enumerate(runs)
    ]  # fmt: skip
    return Evidence((), tuple(rows), {})


GOOD = [(0.80, 0.40), (0.81, 0.42), (0.79, 0.38)]
FAIR = [(0.75, 0.04), (0.76, 0.05), (0.74, 0.06)]
POOR = [(0.55, 0.08), (0.56, 0.09), (0.54, 0.10)]
EVIDENCE = evidence({("a", 0.0): GOOD, ("a", 1.0): FAIR, ("b", 0.0): GOOD, ("b, x", 1.0): POOR})


def test_figures_by_seed() -> None:
    assert average("accuracy", "a").take(EVIDENCE) == pytest.approx({0: 0.775, 1: 0.785, 2: 0.765})
    assert average("unfairness", "a", low=1).take(EVIDENCE) == pytest.approx({0: 0.04, 1: 0.05, 2: 0.06})
    assert at_end("accuracy", "b", last=True).take(EVIDENCE) == pytest.approx({0: 0.55, 1: 0.56, 2: 0.54})
    assert best_accuracy("a").take(EVIDENCE)[0] == 0.80
    assert best_accuracy("a", 0.1).take(EVIDENCE)[0] == 0.75
    assert level(0.3).take(EVIDENCE) == {0: 0.3, 1: 0.3, 2: 0.3}
    with pytest.raises(Missing, match=r"no point of a has an unfairness of 0\.01 or less \(least: 0\.050\)"):
        best_accuracy("a", 0.01).take(EVIDENCE)


def test_claims_are_confirmed_denied_or_left_open() -> None:
    left, right = at_end("accuracy", "b", last=True), at_end("accuracy", "a", last=True)
    below = Claim("b is worse", left, "below", right, 0.1).decide(EVIDENCE)
    assert below.outcome == "confirmed"
    assert below.numbers == "0.5500 and 0.7500; difference -0.2000, 95% interval -0.2000 … -0.2000 over 3 seeds"
    assert Claim("b keeps up", left, "not below", right, 0.1).decide(EVIDENCE).outcome == "not confirmed"
    unfair = Claim("a is fair", best_accuracy("a", 0.01), "not below", left).decide(EVIDENCE)
    assert (unfair.outcome, unfair.numbers[:36]) == ("not confirmed", "no point of a has an unfairness of 0")
    assert Claim("a?", best_accuracy("a", 0.01), "below", left).decide(EVIDENCE).outcome == "undecided"
    missing = Claim("c?", average("accuracy", "c"), "below", right).decide(EVIDENCE)
    assert (missing.outcome, missing.numbers) == ("undecided", "no finished runs of c")
    rule = Claim("b keeps up", left, "not below", right, 0.1).how
    assert rule == "accuracy of b at its largest value, minus accuracy of a at its largest value: above −0.1"


def test_areas_take_a_family_of_series_as_one_frontier() -> None:
    verdict = AreaClaim("b is worse", "b", "below", "a", "a").decide(EVIDENCE)
    assert verdict.outcome == "confirmed"
    # reference: accuracy 0.5, unfairness 0.40 (λ = 0); a: 0.25 × (0.40 − 0.05), b: 0.05 × (0.40 − 0.09)
    assert verdict.numbers.startswith("areas 0.01550 and 0.08750 (a: 0.08750); difference -0.07200")


def test_a_name_with_its_epsilon_is_that_frontier_alone() -> None:
    found = evidence({("a", 0.0): GOOD, ("b, x", 1.0): POOR, ("b, y", 1.0): FAIR}, {"b, x": 3.0, "b, y": 1.0})
    assert [p.series for p in found.series("b")] == ["b, x", "b, y"]
    assert [p.series for p in found.series("b, x, ε = 3")] == ["b, x"]
    with pytest.raises(Missing, match="no finished runs of b, x, ε = 1"):
        found.series("b, x, ε = 1")
    claim = AreaClaim("x is worse", "b, x, ε = 3", "below", "b, y, ε = 1", "a", 0.1)
    assert claim.how == "area (b, x, ε = 3) minus area (b, y, ε = 1): below −10% of area (a)"


@settings(max_examples=60, deadline=None)
@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_verdict_and_its_opposite_never_agree(low: float, width: float, margin: float) -> None:
    interval = (low, low + width)
    for relation, opposite in (("not below", "below"), ("not above", "above")):
        one, other = judge(relation, margin, interval), judge(opposite, margin, interval)  # type: ignore[arg-type]
        assert (
            {one, other} in ({"confirmed", "not confirmed"}, {"undecided"})
            or low + width in (margin, -margin)
            or (low in (margin, -margin))
        )


@pytest.mark.parametrize("name", ["trackers-compas", "trackers-adult", "trackers-communities"])
def test_trackers_differ_in_what_is_shared_only(name: str) -> None:
    jobs = jobs_of(name)
    assert len({job.config.run.seed for job in jobs}) == 20
    assert {job.epsilon for job in jobs} == {1.0, 3.0, math.inf}
    alike = {
        str(
            {
                **config.model_dump(exclude={"run", "fairness", "privacy"}),
                "kernel": config.fairness.kernel,
                "privacy": config.privacy.model_dump(
                    include={"counts", "count_noise", "sampling_rate", "local_steps", "max_grad_norm", "updates"}
                ),
            }
        )
        for config in (job.config for job in jobs if job.config.privacy.enabled)
    }
    assert len(alike) == 1
    assert {job.series for job in jobs if job.config.fairness.tracker == "embedding"} == {"features"}


SECURE = {
    "secure-sums": ("secure sums", {1.0, 3.0}),
    "secure-sums-adult": ("secure sums", {1.0}),
    "secure-sums-compas": ("secure sums", {1.0, 3.0}),
}


@pytest.mark.parametrize("name", SECURE)
def test_secure_sums_have_masks_and_defaults(name: str) -> None:
    jobs = jobs_of(name)
    series, epsilons = SECURE[name]
    assert {job.config.run.seed for job in jobs} == set(range(2000, 2020))  # none of those that settings were chosen on
    for job in jobs:
        config, masked = job.config, job.series.startswith(series)
        private = config.privacy.enabled
        assert private == math.isfinite(job.epsilon) == (job.series != "without privacy")
        assert not private or config.aggregation.masks is masked  # named, whatever the default is
        assert (config.aggregation.colluders, config.aggregation.smallest_cohort) == (None, None)
        assert not private or (config.privacy.epsilon, config.privacy.counts != "public") == (job.epsilon, True)
        assert not masked or (config.sums_counts and config.sums_gradients)
    assert {job.epsilon for job in jobs if job.series == series} == epsilons
    for epsilon in epsilons:
        tables = {
            s: {job.value: job.config.as_tables() for job in jobs if (job.series, job.epsilon) == (s, epsilon)}
            for s in (series, f"{series}, lagged")
        }
        for value, table in tables[f"{series}, lagged"].items():
            assert table["federation"].pop("lagged_scores") is True
            tables[series][value]["federation"].pop("lagged_scores", None)
            assert table == tables[series][value]


def test_the_line_without_privacy_is_a_curators() -> None:
    for name in SECURE:
        found = configs(name, "without privacy")
        private = max(c.federation.rounds for c in configs(name, "secure sums"))
        assert {c.federation.method for c in found} == {"centralized"}
        assert all(c.federation.rounds > private for c in found)


def test_whole_clients_are_against_a_third_of_them() -> None:
    (config, *_) = configs("secure-sums-clients", "secure sums")
    assert (config.aggregation.masks, config.aggregation.colluders, config.privacy.epsilon) == (True, 100, 2.8)
    assert config.data.name == "synthetic"
    assert config.as_tables()["data"]["clients"] == 300


def test_columns_of_results_are_figures() -> None:
    (first, second) = (
        {"series": s, "status": "done", "seed": 3, "epsilon_beyond": e} for s, e in (("a", 70.0), ("b", None))
    )
    found = Evidence((), (first, second), {})
    claim = Claim("small", mean_of("epsilon_beyond", "a", "ε beyond"), "below", level(129))
    assert claim.how == "ε beyond of a, minus 129: below 0"
    assert claim.left.take(found) == {3: 70.0}
    with pytest.raises(Missing, match="no ε beyond of b"):
        mean_of("epsilon_beyond", "b", "ε beyond").take(found)


def test_t_interval_is_scipys() -> None:
    values = np.array([0.1, -0.2, 0.4, 0.3])
    expected = ttest_1samp(values, 0).confidence_interval(0.95)
    assert t_interval(values) == pytest.approx((expected.low, expected.high))
    assert t_interval(values[:1]) == (-math.inf, math.inf)


@pytest.mark.parametrize("name", ["synthetic", "compas", "convergence", "private", "trackers-adult", "secure-sums"])
def test_figures_show_every_series(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    jobs = experiment.jobs(quick=True)
    rng = np.random.default_rng(0)
    rows, histories = [], {}
    for job in jobs:
        drawn = {"accuracy": rng.uniform(0.6, 0.8), "unfairness": rng.uniform(0, 0.3), "baseline_accuracy": 0.5}
        rows.append({**dict.fromkeys(COLUMNS), **job.columns(), "status": "done", **drawn})
        columns = ("train_objective", "test_objective", "train_loss", "train_mmd2", "test_loss", "test_mmd2")
        histories[job.key] = [{"round": r, **{c: rng.random() for c in columns}} for r in range(3)]
    found = Evidence(tuple(jobs), tuple(rows), histories)
    written = experiment.draw(found, tmp_path)
    assert {path.suffix for path in written} == {".png", ".svg"}
    text = "".join(path.read_text() for path in written if path.suffix == ".svg")
    for series in {job.series for job in jobs} if name != "convergence" else {"train loss", "test MMD"}:
        assert f"<!-- {series} -->" in text
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written if path.suffix == ".png")
    for claim in experiment.claims:
        assert claim.decide(found).outcome in ("confirmed", "not confirmed", "undecided")


@pytest.mark.parametrize("last", [0, 1, 2, 7, 49])
def test_places_come_by_halving(last: int) -> None:
    turns = [halvings(place, last) for place in range(last + 1)]
    assert turns[0] == turns[-1] == 0
    for turn in range(max(turns) + 1):
        there = [place for place in range(last + 1) if turns[place] <= turn]
        gaps = np.diff(there)
        assert gaps.size == 0 or gaps.max() <= max(1, -(-last // 2**turn))


def test_whoever_stops_early_has_all_seeds_and_lines_of_a_thinner_grid() -> None:
    jobs = EXPERIMENTS["compas"].jobs(quick=False)
    assert len(jobs) == len({job.key for job in jobs}) == 3090
    first = jobs[: sum(1 for job in jobs if job.value in (None, 1e-5, 10.0, 100.0, 0.001, 2.0))]
    assert {job.config.run.seed for job in first} == set(range(10))
    assert {job.series for job in first} == {job.series for job in jobs}


def test_a_point_that_lacks_seeds_is_no_evidence_yet() -> None:
    jobs = tuple(jobs_of("synthetic", quick=True))
    drawn = {"status": "done", "accuracy": 0.7, "unfairness": 0.1, "baseline_accuracy": 0.5}
    rows = [{**dict.fromkeys(COLUMNS), **job.columns(), **drawn} for job in jobs]
    whole = Evidence(jobs, tuple(rows), {})
    last = rows[-1]
    fewer = Evidence(jobs, tuple(rows[:-1]), {})
    assert len(fewer.points) == len(whole.points) - 1
    assert (last["series"], last["value"]) not in {(p.series, p.value) for p in fewer.points}
