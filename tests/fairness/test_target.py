"""A target in place of λ: the tracked decisions, their sensitivity and noise, and the controller that λ follows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from accountant.errors import InputError
from accountant.events import Adjacency
from privfair.config import Config
from privfair.datasets.records import Schema, SensitiveAttribute
from privfair.fairness.notions import EQUALIZED_ODDS, Cells
from privfair.fairness.tracking import (
    GAIN,
    LEAST_STRENGTH,
    MOST_STRENGTH,
    SMOOTHING,
    Controller,
    EmbeddingPlan,
    SealedFeatures,
    SharedFeatures,
    Steering,
    TargetPlan,
    opened_features,
    step_share,
)
from privfair.fairness.verdict import standard_error
from privfair.kernels import features as unit
from privfair.mechanisms.vector_release import grid_sum
from privfair.runs.defaults import settle

KERNELS = ("energy", "gaussian:3", "laplace:0.3")
SCORES = np.concatenate([np.linspace(-0.1, 1.1, 1201), 0.5 + np.array([-1e-9, 0.0, 1e-9]), [np.nan, np.inf, -np.inf]])


def plan(kernel: str = "energy", **more: Any) -> EmbeddingPlan:
    return EmbeddingPlan(kernel, 0.0, 1.0, None, threshold=0.5, **more)


def schema(attributes: int = 1, groups: int = 2) -> Schema:
    sensitive = tuple(SensitiveAttribute(f"s{a}", tuple(map(str, range(groups)))) for a in range(attributes))
    return Schema(("x",), "binary", "y", (0.0, 1.0), sensitive)


# ---- The coordinate.


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_record_is_in_the_unit_ball_and_two_are_no_farther_apart_than_the_spread(kernel: str) -> None:
    found = plan(kernel).unit
    psi = found.values(SCORES)
    lengths = np.linalg.norm(psi, axis=1)
    assert psi.shape[1] == found.count == found.features.count + 1
    assert 0.99 < lengths.max() <= 1.0  # and no noise is wasted
    apart = np.linalg.norm(psi[::7, None] - psi[None, ::7], axis=2)
    assert apart.max() <= found.spread <= 2.0


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_neighbouring_record_moves_the_whole_numbers_farther_than_the_price_says(adjacency: Adjacency) -> None:
    about = plan()
    noise, psi = about.noise(3.0), about.unit.values(SCORES)
    each = np.stack([grid_sum(row[None], noise.steps) for row in psi])
    most = np.linalg.norm(each, axis=1).max()
    if adjacency is Adjacency.REPLACE_ONE:
        most = max(np.linalg.norm(each - other, axis=1).max() for other in each[::5])
    assert 0.9 * noise.sensitivity(adjacency) < most <= noise.sensitivity(adjacency)


def test_a_decision_that_is_not_centred_would_be_longer_than_it_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: 1{x ≥ threshold} with the scale of the centred coordinate."""
    found = plan().unit
    values = unit.UnitFeatures.values

    def uncentred(self: unit.UnitFeatures, scores: Any, *, alone: bool = False) -> Any:
        psi = values(self, scores, alone=alone)
        psi[:, -1] += unit.DECISION / 2 / self._scale
        return psi

    monkeypatch.setattr(unit.UnitFeatures, "values", uncentred)
    assert np.linalg.norm(found.values(SCORES), axis=1).max() > 1.2


def test_a_decision_that_is_left_out_of_the_price_would_be_longer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: one coordinate more, and the scale of the features alone."""
    found = plan().unit
    monkeypatch.setattr(unit.UnitFeatures, "_scale", 1.0)
    assert np.linalg.norm(found.values(SCORES), axis=1).max() > 1.2


def test_the_decision_is_that_of_the_threshold_itself() -> None:
    found = plan().unit
    below, at = found.values([np.nextafter(0.5, 0.0), 0.5])
    apart = unit.DECISION / math.sqrt(1 + unit.DECISION**2 / 4)
    assert at[-1] == pytest.approx(apart / 2, rel=1e-12)
    assert below[-1] == pytest.approx(-apart / 2, rel=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_noise_features_and_rates_are_those_of_the_records(kernel: str) -> None:
    about, rng = plan(kernel), np.random.default_rng(0)
    scores = [rng.beta(2, 3, size=40), rng.beta(3, 2, size=17)]
    total = np.stack([about.unit.values(own).sum(axis=0) for own in scores])
    shares = np.array([40.0, 17.0])
    opened = opened_features(about, SealedFeatures(kernel, 1.0, b"", shares, shares, 57.0), total, 1.0)
    assert opened.rates is not None
    np.testing.assert_allclose(opened.rates, [(own >= 0.5).mean() for own in scores], rtol=1e-12)
    phi = EmbeddingPlan(kernel, 0.0, 1.0, None).unit.features
    np.testing.assert_allclose(opened.means, [phi.values(own).mean(axis=0) for own in scores], rtol=1e-9, atol=1e-12)


def test_the_noise_of_a_rate_is_what_the_controller_is_told() -> None:
    about, rng = plan(), np.random.default_rng(1)
    noise, draws = about.noise(20.0), 4000
    opened = [
        about.unit.mean_decision(rng.normal(0, noise.multiplier, (1, about.unit.count)) / 50) for _ in range(draws)
    ]
    spread = float(np.std([float(one[0]) for one in opened if one is not None]))
    error = about.unit.decision_noise * noise.multiplier / 50
    assert spread == pytest.approx(error, abs=5 * error / math.sqrt(2 * draws))


# ---- The controller.


def opened(rates: Any, shares: Any = None) -> SharedFeatures:
    known = np.asarray(rates, dtype=float)
    counts = np.full(known.size, 100.0) if shares is None else np.asarray(shares, dtype=float)
    means = np.zeros((known.size, plan().unit.features.count))
    return SharedFeatures(plan(), 1.0, means, counts, np.full(known.size, 100.0), 100.0 * known.size, rates=known)


def beside(cells: int, *, errors: float = 0.0, tests: float = 1e18, noise: float = 0.0) -> Steering:
    return Steering(np.full(cells, errors), np.full(cells, tests), noise)


def test_without_noise_strengths_are_those_of_the_formula() -> None:
    controller = Controller(TargetPlan(0.05, ((0, 1),), (0,), 10))
    gaps, smooth, strength = [0.4, 0.08, 0.03, 0.0, 0.051, 0.049], math.nan, 1.0
    for number, gap in enumerate(gaps):
        smooth = gap if number == 0 else (1 - SMOOTHING) * smooth + SMOOTHING * gap
        strength = strength * math.exp(GAIN * min(max((smooth - 0.05) / 0.05, -1), 1))
        steered = controller.follow(number, opened([0.5 + gap / 2, 0.5 - gap / 2]), beside(2)).steered
        assert steered is not None
        np.testing.assert_allclose(steered.strengths, [strength, strength], rtol=1e-6)
        assert steered.damping == pytest.approx(1 / (1 + 0.2 * strength), rel=1e-6)
        figures = controller.figures(number)
        assert figures["lambda"] == pytest.approx(strength, rel=1e-6)
        assert figures["tracked_gap"] == pytest.approx(smooth, rel=1e-6)


def test_strengths_stay_within_their_bounds_and_never_jump() -> None:
    controller, rng = Controller(TargetPlan(0.05, ((0, 1), (2, 3, 4)), (0, 1), 200)), np.random.default_rng(0)
    for number in range(200):
        high = number < 80
        controller.follow(number, opened(rng.uniform(0, 1, 5) if high else np.full(5, 0.3)), beside(5))
    moves = np.abs(np.diff(np.log(np.vstack([np.ones((1, 2)), controller.strengths])), axis=0))
    assert moves.max() <= GAIN + 1e-12
    assert controller.strengths.max() == MOST_STRENGTH
    assert controller.strengths[-1] == pytest.approx([LEAST_STRENGTH] * 2)


def test_each_set_and_attribute_has_its_own_strength_and_the_widest_pair_counts() -> None:
    cells = Cells.of(EQUALIZED_ODDS, schema(attributes=2, groups=3))
    target = TargetPlan.of(0.1, cells, 10)
    assert [list(own) for own in target.comparisons] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert target.attributes == (0, 0, 1, 1)
    controller = Controller(target)
    rates = [0.2, 0.3, 0.5, *([0.4] * 3), 0.1, 0.1, 0.15, 0.9, 0.0, 0.5]
    steered = controller.follow(0, opened(rates), beside(12)).steered
    assert steered is not None
    expected = np.exp(GAIN * np.clip((np.array([0.3, 0.0, 0.05, 0.9]) - 0.1) / 0.1, -1, 1))
    np.testing.assert_allclose(steered.strengths, np.repeat(expected, 3))
    heaviest = max(expected[:2]) + max(expected[2:])  # what one record of both attributes can meet
    assert steered.damping == pytest.approx(1 / (1 + 0.2 * heaviest))


def test_a_gap_that_is_noise_alone_is_no_gap() -> None:
    rng, rounds, error = np.random.default_rng(3), 4000, 0.1
    controller = Controller(TargetPlan(0.05, ((0, 1),), (0,), rounds))
    for number in range(rounds):
        controller.follow(number, opened(0.5 + rng.normal(0, error, 2)), beside(2, errors=100 * error))
    squares = controller.gaps[50:, 0] ** 2
    raw = 2 * error**2 * SMOOTHING / (2 - SMOOTHING)  # E of the smoothed difference's square
    # max(Δ² − E Δ², 0) of a normal Δ has mean 0.484·E Δ²; with the noise left in it would be 1
    assert squares.mean() == pytest.approx(0.484 * raw, abs=5 * 0.2 * raw)
    assert controller.gaps[50:, 0].min() == 0.0


def test_the_variance_of_smoothed_rates_is_that_of_their_recursion() -> None:
    """Over many controllers: the subtracted variance is the mean square of what noise does, round by round."""
    rng, error, runs = np.random.default_rng(4), 0.2, 3000
    for rounds in (1, 2, 6):
        apart, known = [], 0.0
        for _ in range(runs):
            controller = Controller(TargetPlan(0.05, ((0, 1),), (0,), rounds))
            for number in range(rounds):
                controller.follow(number, opened(0.5 + rng.normal(0, error, 2)), beside(2, errors=100 * error))
            apart.append(controller.state()["rates"] @ [1, -1])
            known = float(controller.state()["variances"].sum())
        assert np.mean(np.square(apart)) == pytest.approx(known, abs=5 * known * math.sqrt(2 / runs))


def test_a_group_that_is_away_keeps_its_rate_and_a_comparison_of_one_group_its_strength() -> None:
    controller = Controller(TargetPlan(0.05, ((0, 1),), (0,), 10))
    controller.follow(0, opened([0.5, 0.9], [100, 0]), beside(2))
    assert controller.strengths[0, 0] == 1.0
    assert controller.figures(0)["tracked_gap"] is None
    controller.follow(1, opened([0.9, 0.5], [0, 100]), beside(2))
    assert controller.figures(1)["tracked_gap"] == pytest.approx(0.0)
    controller.follow(2, opened([0.9, 0.9], [0, 0]), beside(2))
    assert controller.figures(2)["tracked_gap"] == pytest.approx(0.0)


def test_the_aim_is_below_the_target_by_what_the_verdict_needs_unless_that_is_half_of_it() -> None:
    target = TargetPlan(0.05, ((0, 1),), (0,), 10)
    assert target.aim(0.008) == pytest.approx(0.036)
    assert target.aim(0.05 / 1.75 / 2) == pytest.approx(0.025)
    assert target.aim(0.0143) == 0.05
    assert target.aim(math.inf) == 0.05
    controller = Controller(target)
    controller.follow(0, opened([0.1, 0.3]), beside(2, tests=5000.0, noise=16.0))
    assert controller.aims[0, 0] == pytest.approx(0.05 - 1.75 * standard_error([5000, 5000], 0.2, 16.0))
    assert controller.notes == []
    few = Controller(target)
    few.follow(0, opened([0.1, 0.3]), beside(2, tests=200.0))
    assert "a matter of luck" in few.notes[0]


def test_a_round_that_is_asked_for_again_gets_what_it_got_and_one_too_many_is_refused() -> None:
    controller = Controller(TargetPlan(0.05, ((0, 1),), (0,), 10))
    first = controller.follow(0, opened([0.2, 0.6]), beside(2)).steered
    controller.follow(1, opened([0.2, 0.5]), beside(2))
    again = controller.follow(0, opened([0.9, 0.9]), beside(2)).steered  # whatever it is asked with
    assert first is not None
    assert again is not None
    np.testing.assert_array_equal(first.strengths, again.strengths)
    assert controller.round == 2
    with pytest.raises(InputError, match="must be those of round 2"):
        controller.follow(3, opened([0.2, 0.5]), beside(2))


def test_a_controller_that_is_restored_goes_on_as_if_it_had_never_stopped() -> None:
    rng = np.random.default_rng(5)
    rates = rng.uniform(0, 1, (8, 2))
    whole, first = (Controller(TargetPlan(0.05, ((0, 1),), (0,), 8)) for _ in range(2))
    for number in range(8):
        whole.follow(number, opened(rates[number]), beside(2, errors=3.0))
    for number in range(4):
        first.follow(number, opened(rates[number]), beside(2, errors=3.0))
    second = Controller(whole.plan)
    second.restore(first.state())
    for number in range(4, 8):
        second.follow(number, opened(rates[number]), beside(2, errors=3.0))
    for name, values in whole.state().items():
        np.testing.assert_array_equal(second.state()[name], values, err_msg=name)


def test_steps_are_whole_at_first_and_a_tenth_at_the_end() -> None:
    assert [step_share(t, 10) for t in range(11)] == pytest.approx([1] * 6 + [0.9, 0.7, 0.5, 0.3, 0.1])


# ---- The configuration.


def settled(**fairness: Any) -> Any:
    sections = {name: fairness.pop(name, {}) for name in ("privacy", "federation", "aggregation")}
    return settle(Config.build({"fairness": fairness, **sections}), schema(), 3)


def test_a_target_and_a_strength_are_not_named_together() -> None:
    with pytest.raises(InputError, match=r"fairness.lambda must be left out beside fairness.target.*name one of the"):
        Config.build({"fairness": {"target": 0.1, "lambda": 0.5}})


def test_a_resolved_configuration_has_one_of_the_two_and_settles_to_itself() -> None:
    found = settled(target=0.1).config
    tables = found.as_tables()
    assert tables["fairness"]["target"] == 0.1
    assert "lambda" not in tables["fairness"]
    again = settle(Config.build(tables), schema(), 3)
    assert again.choices == ()
    assert again.config.as_tables() == tables
    assert "target" not in settled(**{"lambda": 0.5}).config.as_tables()["fairness"]


def test_what_a_target_chooses_and_why() -> None:
    found = settled(target=0.1)
    chosen = {choice.key: choice.value for choice in found.choices}
    assert chosen["fairness.tracker"] == "embedding"
    assert chosen["federation.drift_correction"] == "shared"
    assert chosen["federation.average_last"] == 0.4
    private = settled(target=0.1, privacy={"epsilon": 1.0}).config
    assert private.federation.drift_correction == "none"
    whole = settled(target=0.1, privacy={"epsilon": 1.0, "updates": "client_level"}).config
    assert whole.federation.drift_correction == "shared"
    named = settled(target=0.1, federation={"average_last": 0.0, "drift_correction": "own"}).config.federation
    assert (named.average_last, named.drift_correction) == (0.0, "own")
    assert settled().config.federation.drift_correction == "none"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"tracker": "samples"}, r'must be embedding where a target.*Set fairness.tracker = "embedding"'),
        ({"samples": 50}, r'fairness.samples must be left out beside.*set fairness.tracker = "embedding"'),
        ({"privacy": {"epsilon": 1.0, "predictions": "laplace"}}, "privacy.predictions must be left out"),
        ({"privacy": {"epsilon": 1.0, "prediction_rate": 0.1}}, "privacy.prediction_rate must be left out"),
        ({"federation": {"method": "fedavg"}}, "every method but mmd_fedavg"),
        ({"notion": "risk_parity"}, "must be left out for notions that compare losses"),
    ],
)
def test_what_a_target_cannot_be_followed_with_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"(?i){message}"):
        settled(target=0.1, **sections)
