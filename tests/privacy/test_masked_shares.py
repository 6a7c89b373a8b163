"""Noise in shares under masks: its law, its price, totals of counts, and what plan, ledger and statement make of it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import privfair
from accountant.bounds import by_pld, spent
from accountant.calibration import exact_delta
from accountant.errors import InputError
from accountant.events import Adjacency, Composed, Gaussian, InShares, PoissonSampled, Unit, unshared
from accountant.ledger.ledger import Ledger
from privfair.channels.updates import multiplier_for, sum_event
from privfair.config import Config
from privfair.mechanisms.count_release import CountNoise, shared_scale_for
from privfair.mechanisms.entropy import SeededEntropy
from privfair.mechanisms.vector_release import GRIDS, LEAST_NOISE, GradientPlan, VectorNoise
from privfair.privacy.planner import PrivateCounts
from privfair.privacy.statement import _claim, collusion
from privfair.runs.assembly import RunSpec, build
from privfair.runs.defaults import settle
from privfair.runs.loop import run
from privfair.secure_aggregation import masks
from privfair.secure_aggregation.base import BFV_MODULUS
from privfair.secure_aggregation.masking import MaskingHolder
from privfair.secure_aggregation.masks import Cohort
from tests.end_to_end.federations import toy
from tests.privacy.plans import planner, reported

COHORT = Cohort.of(10)
TOTALS: dict[str, Any] = {"cohort": COHORT, "counts_in_shares": True}
GRADIENTS = GradientPlan(11, COHORT.holders, COHORT.honest, BFV_MODULUS)


# ---- counts


@given(st.floats(0.05, 1e4), st.integers(2, 700))
@settings(deadline=None)
def test_a_share_of_the_noise_of_a_total_has_sixteen_steps_and_honest_shares_have_all_of_it(scale, shares) -> None:
    noise = CountNoise("gaussian", scale, shares, 1000)
    share = noise.scale * noise.steps / math.sqrt(shares)
    assert share >= LEAST_NOISE
    assert shares * share**2 >= (noise.scale * noise.steps) ** 2 * (1 - 1e-12)


def test_shares_add_up_to_the_noise_that_is_claimed() -> None:
    noise, draws = CountNoise("gaussian", 3.0, COHORT.honest, 1000), 4000
    entropy = SeededEntropy(np.random.default_rng(5))
    sums = sum(noise.release(np.zeros(draws, dtype=np.int64), entropy) for _ in range(COHORT.honest)) / noise.steps
    spread = 4.5 * math.sqrt(2 / draws)  # standard errors of a normal variance: once in 150,000
    assert np.var(sums) / 9.0 == pytest.approx(1.0, abs=spread)
    assert abs(np.mean(sums)) < 4.5 * 3.0 / math.sqrt(draws)


def test_the_event_of_a_total_bounds_the_discrete_law_that_is_drawn() -> None:
    """Direct summation of max(0, p − e^ε q) over the integers, for a total that one record moves by one record."""
    noise = CountNoise("gaussian", 2.0, 2, 1000)
    sigma, moved = noise.scale * noise.steps, noise.steps
    points = np.arange(-40 * int(sigma), 40 * int(sigma) + 1, dtype=float)
    mass = np.exp(-(points**2) / (2 * sigma**2))
    log_ratio = (-(points**2) + (points - moved) ** 2) / (2 * sigma**2)  # of p(x) and p(x − moved)
    event = noise.event()
    assert isinstance(event, Gaussian)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        truth = float(np.sum(mass * np.maximum(0.0, -np.expm1(epsilon - log_ratio))) / mass.sum())
        assert truth <= exact_delta(event, epsilon) <= 1.01 * truth + 1e-12


@pytest.mark.parametrize(
    ("epsilon", "delta", "overlap", "shares"), [(0.05, 1e-6, 1, 24), (3.0, 1e-6, 2, 2), (20.0, 1e-3, 1, 165)]
)
def test_the_scale_of_totals_meets_its_target_and_wastes_little(epsilon, delta, overlap, shares) -> None:
    scale = shared_scale_for(epsilon, delta, overlap, shares, 1000)
    event = CountNoise("gaussian", scale, shares, 1000).event(overlap)
    assert exact_delta(event, epsilon) <= delta
    assert exact_delta(Gaussian(event.noise_scale * 0.97, event.sensitivity), epsilon) > delta


def test_laplace_noise_has_no_shares() -> None:
    with pytest.raises(InputError, match="must be gaussian, with a bound on counts, in shares; found 'laplace'"):
        CountNoise("laplace", 2.0, 3, 100)

    def settled(masks: bool, **counts: str) -> Config:
        tree = {"fairness": {"tracker": "embedding"}, "privacy": {"epsilon": 1.0, **counts}}
        return settle(Config.build({**tree, "aggregation": {"masks": masks}}), toy().schema, 5).config

    with pytest.raises(InputError, match=r"privacy\.counts must be gaussian with masks: shares of Laplace noise"):
        settled(True, counts="laplace")
    assert settled(True).privacy.counts == "gaussian"
    assert settled(False).privacy.counts == "laplace"


def test_a_count_is_clamped_before_its_noise_and_never_after() -> None:
    noise = CountNoise("gaussian", 5.0, 6, most=10)
    entropy = SeededEntropy(np.random.default_rng(1))
    drawn = noise.release(np.full(2000, 10**9), entropy) - 10 * noise.steps
    assert np.any(drawn > 0)
    assert abs(np.mean(drawn)) < 5 * np.std(drawn) / math.sqrt(2000)


# ---- gradients


@given(st.floats(0.01, 200.0), st.integers(1, 10**5), st.floats(1.0, 1e5), st.integers(3, 300))
@settings(deadline=None)
def test_a_planned_grid_has_room_for_the_sum_and_sixteen_steps_in_a_share(multiplier, count, records, clients) -> None:
    cohort = Cohort.of(clients)
    plan = GradientPlan(count, clients, cohort.honest, BFV_MODULUS)
    try:
        noise = plan.noise(multiplier, records)
    except InputError:
        return
    assert noise.steps in GRIDS
    assert noise.share_scale >= LEAST_NOISE
    assert noise.steps >= 16 * math.sqrt(count)
    reach = 12.2 * multiplier * noise.steps * math.sqrt(clients / cohort.honest)
    assert math.ceil(records) * noise.steps + reach <= (BFV_MODULUS - 1) // 2
    assert plan.room(noise, records) >= records * noise.steps


@given(st.floats(0.02, 500.0), st.integers(1, 10**6))
@settings(deadline=None)
def test_the_event_of_a_step_has_no_more_noise_than_any_of_its_grids(needed, count) -> None:
    multiplier = multiplier_for(needed, count)
    event = sum_event(0.5, multiplier, Adjacency.ADD_OR_REMOVE, count)
    assert isinstance(event, PoissonSampled)
    assert event.event.noise_multiplier >= needed * (1 - 1e-9)
    for steps in GRIDS:
        if steps >= 16 * math.sqrt(count) and multiplier * steps >= LEAST_NOISE:
            grid = VectorNoise(multiplier, min(count, 2**24), 2.0, steps, inward=True).event()
            assert event.event.noise_multiplier <= grid.noise_multiplier * (1 + 1e-12)


# ---- the plan


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_a_plan_with_shares_costs_its_target_and_beyond_it_what_one_share_costs(epsilon) -> None:
    plan = planner(
        {"epsilon": epsilon, "counts": "gaussian", "evaluation": "gaussian", "retries": 0},
        shares_scores=False, gradients=GRADIENTS, **TOTALS, rounds=20, learning_rate=0.1,
    )  # fmt: skip
    negotiator = PrivateCounts(plan)
    settled = negotiator.settle(negotiator.divided(np.array([600, 400]) * plan.count_noise.steps, 10, 10))
    assert settled.claim is not None
    assert settled.gradient is not None
    assert epsilon * 0.97 <= settled.claim.pld <= epsilon * (1 + 1e-9)
    honest = settled.gradient.noise
    alone = [
        Gaussian(noise.scale / math.sqrt(noise.shares) * 0.999999) for noise in (settled.counting, settled.evaluation)
    ]
    own = Gaussian(honest.multiplier / math.sqrt(honest.shares) * (1 - 1e-3))
    found = collusion(settled, plan)
    assert found is not None
    expected = by_pld(Composed((*alone, *(own,) * 20)), settled.claim.delta)
    assert found["epsilon_beyond"]["pld"] == pytest.approx(expected, rel=0.01)
    assert (found["n"], found["colluders"], found["smallest_cohort"]) == (10, 3, 9)


def test_totals_leave_nobody_out_and_drop_only_cells_that_are_small_over_all() -> None:
    from privfair.fairness.tracking import EmbeddingPlan

    plan = planner(
        {"epsilon": 3.0, "counts": "gaussian", "retries": 0, "min_count": 30},
        gradients=GRADIENTS, embedding=EmbeddingPlan("energy", 0.0, 1.0, 8, shares=6), **TOTALS,
    )  # fmt: skip
    negotiator = PrivateCounts(plan)
    steps = plan.count_noise.steps
    parts = negotiator.divided(np.array([2003 * steps + 3, 21 * steps]), 10, 10)
    assert [p.records for p in parts] == [204, 203, 203, 202, 202, 202, 202, 202, 202, 202]
    settled = negotiator.settle(parts)
    assert settled.totals
    assert (settled.records > 0).all()
    assert settled.embedding is not None
    assert settled.embedding.cells.tolist() == [[1, 0]] * 10
    absent = negotiator.divided(np.array([900 * steps, 0]), 9, 10)
    assert sum(p.records for p in absent) == 1000  # who is absent counts as average


def test_without_totals_small_clients_are_left_out_as_before() -> None:
    plan = planner({"epsilon": 3.0, "retries": 0}, shares_scores=False)
    settled = PrivateCounts(plan).settle(reported(((300, 300), (1, 1))))
    assert settled.records.tolist() == [600, 0]


# ---- whole runs


def masked(folder: Path, engine: str = "local", scheme: str = "masked", **privacy: Any) -> Config:
    return Config.build(
        {
            "federation": {"rounds": 3, "learning_rate": 0.3},
            "fairness": {"lambda": 0.5, "tracker": "embedding", "features": 6},
            "privacy": {"epsilon": 4.0, "delta": 1e-4, "evaluation": "gaussian", "min_count": 1, **privacy},
            "aggregation": {"scheme": scheme, "masks": True},
            "run": {
                "ledger": f"sqlite:///{folder}/{engine}-{scheme}.sqlite", "engine": engine,
                "reproducible_noise": True,
            },
        }
    )  # fmt: skip


def trained(config: Config) -> Any:
    made = build(config, toy(clients=5, records=60))
    try:
        return run(made)
    finally:
        made.close()


def test_every_engine_and_scheme_gives_the_same_model_counts_and_evaluation(tmp_path) -> None:
    local = trained(masked(tmp_path))
    for other in (trained(masked(tmp_path, scheme="bfv")), trained(masked(tmp_path, "stacked"))):
        np.testing.assert_allclose(other.simulation.replica.parameters, local.simulation.replica.parameters, rtol=1e-5)
        assert other.state.release_plan.records.tolist() == local.state.release_plan.records.tolist()
        for mine, theirs in zip(local.released[0].confusion, other.released[0].confusion, strict=True):
            assert mine.tolist() == theirs.tolist()
    assert len(local.released) == 1


def test_the_ledger_of_a_masked_run_costs_no_more_than_its_plan_and_knows_one_share(tmp_path) -> None:
    config = masked(tmp_path)
    outcome = trained(config)
    claim, plan = outcome.state.release_plan.claim, outcome.state.release_plan
    with Ledger(config.run.ledger) as ledger:
        run_name = outcome.simulation.credentials.run
        rows = [spend for _, spend in ledger.spends(run=run_name)]
    rows = [spend for spend in rows if spend.client == rows[0].client]
    assert {spend.channel for spend in rows} == {"counts", "embeddings", "updates", "evaluation"}
    assert all(isinstance(spend.event, InShares) for spend in rows)
    one_group = [spend for spend in rows if not spend.group or spend.group == rows[1].group]
    everything = Composed(tuple(event for spend in one_group for event in (spend.event,) * spend.count))
    assert spent(everything, claim.delta, "rdp").epsilon <= claim.rdp * (1 + 1e-9)
    beyond = collusion(plan, outcome.simulation.spec.planner)["epsilon_beyond"]["rdp"]
    assert spent(unshared(everything), claim.delta, "rdp").epsilon <= beyond * (1 + 1e-9)


def test_what_honest_holders_draw_carries_the_claim_in_every_channel(tmp_path) -> None:
    """A plan whose noise is sized for all holders instead of the honest ones fails this."""
    spec = RunSpec.of(masked(tmp_path), toy(clients=5).schema, 5)
    negotiator = spec.negotiator(lambda: 1)
    steps = spec.planner.count_noise.steps
    plan = negotiator.settle(negotiator.divided(np.array([100, 100]) * steps, 5, 5))
    honest = Cohort.of(5).honest
    assert honest == 3
    vectors = (plan.embedding.noise, plan.gradient.noise)
    assert all(honest * noise.share_scale**2 >= noise.grid_scale**2 for noise in vectors)
    for noise in (plan.counting, plan.evaluation):
        entropy = SeededEntropy(np.random.default_rng(3))
        share = np.std(noise.release(np.zeros(6000, dtype=np.int64), entropy)) / noise.steps
        assert honest * share**2 >= noise.scale**2 * (1 - 4.5 * math.sqrt(2 / 6000))


def test_more_local_steps_keep_each_holders_whole_noise(tmp_path) -> None:
    config = masked(tmp_path, local_steps=2, sampling_rate=0.5)
    assert not config.sums_gradients
    outcome = trained(config)
    plan = outcome.state.release_plan
    assert plan.gradient is None
    assert plan.embedding.noise.shares == Cohort.of(5).honest


def test_the_statement_names_whom_the_epsilon_is_for(tmp_path) -> None:
    result = privfair.train(
        {
            "data": {"name": "synthetic"}, "federation": {"rounds": 2}, "fairness": {"tracker": "embedding"},
            "privacy": {"epsilon": 3.0}, "aggregation": {"masks": True},
            "run": {"ledger": f"sqlite:///{tmp_path}/ledger.sqlite", "out": str(tmp_path / "run")},
        }
    )  # fmt: skip
    found = result.privacy["collusion"]
    assert (found["n"], found["colluders"], found["smallest_cohort"]) == (10, 3, 9)
    assert found["epsilon_beyond"]["pld"] > 3.0
    assert "at most 3 of the 10 data holders" in result.privacy["claim"]
    assert result.privacy["private"]
    assert not any("floating point" in line or "single key" in line for line in result.privacy["not_covered"])
    # Gaussian noise on everything: the ε of the plan is near that of μ-GDP, an independent computation
    noise = result.privacy["noise"]
    mu = math.sqrt(
        2 / noise["updates"]["noise_multiplier"] ** 2
        + 2 / noise["embeddings"]["scale"] ** 2
        + 1 / noise["counts"]["scale"] ** 2
    )
    epsilon = result.privacy["epsilon"]["pld"]
    delta = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert delta == pytest.approx(1e-5, rel=0.15)


def test_a_run_among_neighbours_gives_the_same_model_and_says_what_it_assumes(tmp_path, monkeypatch) -> None:
    """The limit is lowered to 4 of 5 holders: local engine, real keys and shares, and the complete graph beside it."""
    complete = trained(masked(tmp_path))
    said = collusion(complete.state.release_plan, complete.simulation.spec.planner)
    monkeypatch.setattr(masks, "COMPLETE_UP_TO", 4)
    drawn = []
    draw = MaskingHolder._drawn
    monkeypatch.setattr(MaskingHolder, "_drawn", lambda self, n: drawn.append(n) or draw(self, n))
    sparse = trained(masked(tmp_path, scheme="bfv"))
    assert drawn == [3] * 5  # once each
    np.testing.assert_allclose(sparse.simulation.replica.parameters, complete.simulation.replica.parameters, rtol=1e-5)
    found = collusion(sparse.state.release_plan, sparse.simulation.spec.planner)
    assert "if it does not lie about survivors" in found["within"]
    assert "2⁻⁸⁰" in found["assumes"]
    assert "does not lie" not in said["within"]
    assert found["epsilon_beyond"] == said["epsilon_beyond"]
    assert (found["n"], found["colluders"], found["honest_shares"]) == (5, 1, 3)
    about = {"shared": True, "cohort": Cohort.of(5), "in_the_open": False}
    claim = _claim(SimpleNamespace(seeded=False), SimpleNamespace(inferred=False), [], Unit.RECORD, **about)
    assert "if it does not lie about survivors" in claim
    assert "or it lies, the larger ε holds" in claim


# ---- what a review found


def test_an_evaluation_with_laplace_noise_is_refused_with_public_counts_too() -> None:
    tree = {
        "fairness": {"tracker": "embedding"},
        "privacy": {"epsilon": 1.0, "counts": "public", "evaluation": "laplace"},
        "aggregation": {"masks": True},
    }
    with pytest.raises(InputError, match=r"privacy\.evaluation must be gaussian with masks"):
        settle(Config.build(tree), toy().schema, 5)


@pytest.mark.parametrize("clients", [83, 84, 120, 300])
def test_many_holders_have_a_plan_whose_shares_have_enough_steps(tmp_path, clients) -> None:
    planned = RunSpec.of(masked(tmp_path), toy(clients=3).schema, clients).planner
    assert planned is not None
    planned.require_plannable()


@pytest.mark.parametrize("epsilon", [60.0, 200.0])
def test_a_large_epsilon_is_planned_and_priced_before_anything_is_released(tmp_path, epsilon) -> None:
    spec = RunSpec.of(masked(tmp_path, epsilon=epsilon), toy(clients=3).schema, 40)
    negotiator = spec.negotiator(lambda: 1)
    plan = negotiator.settle(negotiator.divided(np.array([900, 900]) * spec.planner.count_noise.steps, 40, 40))
    assert plan.gradient is not None
    for noise in (plan.gradient.noise, plan.gradient.noise.alone):
        event = sum_event(1.0, noise, Adjacency.ADD_OR_REMOVE)
        assert event.event.noise_multiplier <= noise.event().noise_multiplier * (1 + 1e-12)


def test_a_plan_of_two_phases_states_no_epsilon_beyond_its_assumption(tmp_path) -> None:
    outcome = trained(masked(tmp_path, local_steps=3))
    found = collusion(outcome.state.release_plan, outcome.simulation.spec.planner)
    assert found is not None
    assert found["epsilon_beyond"] == {"rdp": None, "pld": None}


def test_the_stacked_engine_claims_no_masks_and_is_refused_for_data_with_a_budget(tmp_path, monkeypatch) -> None:
    from accountant import Budget

    monkeypatch.setenv("PRIVFAIR_STATE", str(tmp_path / "state"))
    config = masked(tmp_path, "stacked").as_tables()
    config["run"] |= {"reproducible_noise": False, "out": str(tmp_path / "run")}
    result = privfair.train(Config.build(config), dataset=toy(clients=5, records=60))
    assert not result.privacy["private"]
    assert "added up in the open" in result.privacy["claim"]
    with Ledger(config["run"]["ledger"]) as ledger:
        ledger.set_budget("toy", Budget(50.0, 1e-4))
    with pytest.raises(InputError, match=r"run\.engine must not be stacked with masks for 'toy', which has a budget"):
        build(Config.build(config), toy(clients=5, records=60))


@pytest.mark.parametrize(("channel", "number"), [("counts", 0), ("evaluation", 7)])
def test_totals_that_a_crash_interrupted_are_made_and_paid_again(tmp_path, channel, number) -> None:
    from tests.end_to_end.test_masked_training import interrupted

    config = masked(tmp_path)
    name = interrupted(config, tmp_path / "out", "UnmaskSumRequest", number)
    resumed = privfair.train(resume=tmp_path / "out", dataset=toy(clients=5, records=40))
    with Ledger(config.run.ledger or "", create=False) as ledger:
        rows = [spend for _, spend in ledger.spends(run=name) if spend.channel == channel]
    assert len(rows) == 2 * 5
    assert len(list(resumed.rows)) == 4  # before the first round, and after each
