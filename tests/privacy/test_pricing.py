"""The price of every request, and that it is the price of the noise really drawn."""

from __future__ import annotations

import numpy as np
import pytest

from accountant.events import (
    Adjacency,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    FixedSizeSampled,
    Gaussian,
    Nothing,
    NotPrivate,
    PoissonSampled,
)
from accountant.spending import require_group
from privfair.channels.base import PriceList
from privfair.channels.updates import step_event
from privfair.datasets.records import Schema, SensitiveAttribute
from privfair.fairness.notions import Cells, ConditioningSet, Notion, notion_by_name
from privfair.federated.messages import (
    CountsRequest,
    EvaluateRequest,
    LocalWork,
    MeasureRequest,
    Parameters,
    PrivateWork,
    ScoreRelease,
    ScoresRequest,
    Task,
    TrainRequest,
)
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.score_release import ScoreNoise
from privfair.privacy.run_ledger import cell_labels

MODEL = Parameters(np.zeros(3))
ADD, REPLACE = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE


def schema_of(*attributes: tuple[str, tuple[str, ...]], conditions: tuple[str, ...] = ()) -> Schema:
    sensitive = tuple(SensitiveAttribute(name, values) for name, values in attributes)
    return Schema(("x",), "binary", "y", (0.0, 1.0), sensitive, conditions)


SEX = ("sex", ("F", "M"))
RACE = ("race", ("A", "B", "C"))


def prices(notion: str | Notion, schema: Schema, adjacency: Adjacency = ADD, counts: int = 30) -> PriceList:
    cells = Cells.of(notion_by_name(notion, schema) if isinstance(notion, str) else notion, schema)
    labels = cell_labels(cells, schema)
    return PriceList("people", "run", "north", labels, cells, adjacency, np.full(len(cells), counts, dtype=np.int64))


def scores(quotas: list[int], noise: ScoreNoise, rates: list[float] | None) -> ScoresRequest:
    release = ScoreRelease(noise, None if rates is None else np.array(rates))
    return ScoresRequest(4, MODEL, np.array(quotas), release)


def training(work: LocalWork | PrivateWork) -> TrainRequest:
    return TrainRequest(4, MODEL, Task(), work, 0.5)


WORK = PrivateWork(steps=7, sampling_rate=0.2, noise_multiplier=1.5, max_grad_norm=3.0, divisor=9.0, learning_rate=0.1)


def test_counts() -> None:
    """The vector of counts moves by 1 in as many entries as a record has cells, and in the total where it is told."""
    one = prices("statistical_parity", schema_of(SEX)).spends(CountsRequest(CountNoise("laplace", 4.0)))
    assert [s.event for s in one] == [DiscreteLaplace(4.0, 1, ADD)]
    assert (one[0].channel, one[0].round, one[0].group, one[0].client, one[0].count) == ("counts", None, "", "north", 1)
    both = prices("statistical_parity", schema_of(SEX, RACE))
    assert both.spends(CountsRequest(CountNoise("laplace", 4.0)))[0].event == DiscreteLaplace(4.0, 2, ADD)
    gaussian = both.spends(CountsRequest(CountNoise("gaussian", 4.0)))[0].event
    assert gaussian == Composed((DiscreteGaussian(4.0, 1, ADD),) * 2)
    odds = prices("equalized_odds", schema_of(SEX))  # label 0 or label 1: one of them
    assert odds.spends(CountsRequest(CountNoise("laplace", 4.0)))[0].event == DiscreteLaplace(4.0, 1, ADD)
    opportunity = prices("equal_opportunity", schema_of(SEX))  # its cell, and the total
    assert opportunity.spends(CountsRequest(CountNoise("laplace", 4.0)))[0].event == DiscreteLaplace(4.0, 2, ADD)
    overlapping = prices("conditional_statistical_parity", schema_of(SEX, RACE, conditions=("old", "rich", "tall")))
    event = overlapping.spends(CountsRequest(CountNoise("laplace", 4.0)))[0].event
    assert event == DiscreteLaplace(4.0, 2 * 3 + 1, ADD)


def test_counts_without_noise() -> None:
    assert prices("statistical_parity", schema_of(SEX)).spends(CountsRequest())[0].event == NotPrivate()
    assert prices("statistical_parity", schema_of(SEX), REPLACE).spends(CountsRequest())[0].event == Nothing()


def test_scores_pay_cell_by_cell() -> None:
    noise = ScoreNoise("gaussian", 0.5)
    found = prices("statistical_parity", schema_of(SEX)).spends(scores([5, 9], noise, [0.25, 0.75]))
    assert [(s.group, s.event) for s in found] == [
        ("sex=F", PoissonSampled(0.25, DiscreteGaussian(128.0, 256, ADD, step=1 / 256))),
        ("sex=M", PoissonSampled(0.75, DiscreteGaussian(128.0, 256, ADD, step=1 / 256))),
    ]
    assert {(s.channel, s.round, s.count) for s in found} == {("predictions", 4, 1)}
    laplace = ScoreNoise("laplace", 2.0, -1.0, 1.0)
    (only,) = prices("statistical_parity", schema_of(SEX)).spends(scores([0, 9], laplace, [0.0, 0.75]))
    assert only.group == "sex=M"
    assert only.event == PoissonSampled(0.75, DiscreteLaplace(256.0, 256, ADD, step=2 / 256))
    (nothing,) = prices("statistical_parity", schema_of(SEX)).spends(scores([0, 0], noise, [0.0, 0.0]))
    assert nothing.event == Nothing()


def test_scores_with_public_counts() -> None:
    noise = ScoreNoise("gaussian", 0.5)
    one = DiscreteGaussian(128.0, 256, REPLACE, step=1 / 256)
    found = prices("statistical_parity", schema_of(SEX), REPLACE).spends(scores([5, 30], noise, None))
    assert [s.event for s in found] == [FixedSizeSampled(5, 30, one), one]


def test_scores_without_noise() -> None:
    (row,) = prices("statistical_parity", schema_of(SEX)).spends(ScoresRequest(0, MODEL, np.array([3, 3])))
    assert row.event == NotPrivate()


def test_exclusive_sets_are_groups_of_one_attribute_and_overlapping_ones_are_not() -> None:
    """Groups of one attribute compose in parallel, equal groups add up: the labels decide which."""
    odds = prices("equalized_odds", schema_of(SEX)).labels
    assert len(set(odds)) == 4
    assert {label.partition("=")[0] for label in odds} == {"sex,y"}
    schema = schema_of(SEX, conditions=("old", "rich"))
    assert prices("conditional_statistical_parity", schema).labels == ("sex=F", "sex=M", "sex=F", "sex=M")
    two = prices("equalized_odds", schema_of(SEX, RACE)).labels
    assert {label.partition("=")[0] for label in two} == {"sex,y", "race,y"}
    assert len(set(two)) == 2 * 2 + 2 * 3


def test_labels_are_names_that_the_ledger_accepts() -> None:
    """Signs of its grammar in names of people's own making; two names that then meet pay together."""
    schema = schema_of((" se=x,  y ", ("F=1", "a, b", "")), ("other", ("F", "M")), conditions=("income = 3, or so",))
    everything = Notion("two", "prediction", (
        ConditioningSet("a = b", lambda r: r.labels > 0), ConditioningSet("c, d", lambda r: r.labels <= 0),
    ), exclusive=True)  # fmt: skip
    for notion in ("statistical_parity", "equalized_odds", "conditional_statistical_parity", everything):
        labels = prices(notion, schema).labels
        assert [require_group(label) for label in labels] == list(labels)


def test_training() -> None:
    """Noise in units of the clipping norm: the norm itself has no price."""
    (row,) = prices("statistical_parity", schema_of(SEX)).spends(training(WORK))
    assert (row.event, row.count) == (PoissonSampled(0.2, Gaussian(1.5, 1.0, ADD)), 7)
    assert (row.channel, row.round, row.group) == ("updates", 4, "")
    (row,) = prices("statistical_parity", schema_of(SEX), REPLACE).spends(training(WORK))
    assert row.event == PoissonSampled(0.2, Gaussian(1.5, 2.0, REPLACE), presence_sensitivity=1.0)
    (row,) = prices("statistical_parity", schema_of(SEX)).spends(training(LocalWork(1, 10, 0.1)))
    assert row.event == NotPrivate()
    assert step_event(0.2, 1.5, ADD) == PoissonSampled(0.2, Gaussian(1.5, 1.0, ADD))


def test_measures_and_evaluation() -> None:
    (row,) = prices("statistical_parity", schema_of(SEX)).spends(MeasureRequest(MODEL, ("loss",)))
    assert (row.event, row.channel) == (NotPrivate(), "measures")
    evaluation = EvaluateRequest(MODEL, CountNoise("laplace", 3.0))
    (row,) = prices("equalized_odds", schema_of(SEX, RACE)).spends(evaluation)
    assert (row.event, row.channel, row.round) == (DiscreteLaplace(3.0, 2, ADD), "evaluation", None)
    (row,) = prices("equalized_odds", schema_of(SEX, RACE), REPLACE).spends(evaluation)
    assert row.event == DiscreteLaplace(3.0, 4, REPLACE)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_priced_event_is_that_of_the_noise_really_drawn(kind: str) -> None:
    """The sampler is handed exactly the scale that the event says, in the event's own unit, and the right law."""

    class Listening:
        claim, description = False, "listens"

        def __init__(self) -> None:
            self.scales: list[tuple[str, float]] = []

        def poisson_mask(self, n: int, rate: float) -> np.ndarray:
            self.scales.append(("rate", rate))
            return np.ones(n, dtype=bool)

        def permutation(self, n: int) -> np.ndarray:
            return np.arange(n)

        def choice(self, n: int, m: int) -> np.ndarray:
            return np.arange(m)

        def normal(self, size: int) -> np.ndarray:
            raise AssertionError("no continuous noise on scores or counts")

        def discrete_gaussian(self, scale: float, size: int) -> np.ndarray:
            self.scales.append(("gaussian", scale))
            return np.zeros(size, dtype=np.int64)

        def discrete_laplace(self, scale: float, size: int) -> np.ndarray:
            self.scales.append(("laplace", scale))
            return np.zeros(size, dtype=np.int64)

    from privfair.mechanisms.score_release import poisson_scores

    entropy = Listening()
    noise = ScoreNoise(kind, 0.3, -2.0, 5.0)  # type: ignore[arg-type]
    poisson_scores(np.array([0.1, 3.0]), 4, 0.4, noise, entropy)
    (row,) = prices("statistical_parity", schema_of(("sex", ("F",)))).spends(scores([4], noise, [0.4]))
    assert isinstance(row.event, PoissonSampled)
    law = {"gaussian": DiscreteGaussian, "laplace": DiscreteLaplace}[kind]
    assert isinstance(row.event.event, law)
    assert entropy.scales == [("rate", row.event.rate), (kind, row.event.event.noise_scale)]
    assert row.event.event.sensitivity * noise.step == pytest.approx(7.0)
    entropy.scales.clear()
    counting = CountNoise(kind, 2.5)  # type: ignore[arg-type]
    counting.release(np.array([3, 4]), entropy)
    (row,) = prices("statistical_parity", schema_of(SEX)).spends(CountsRequest(counting))
    assert isinstance(row.event, law)
    assert entropy.scales == [(kind, row.event.noise_scale)]


def test_the_noise_of_updates_has_the_scale_of_its_event() -> None:
    """z·C of the step's noise over the norm C that a record is clipped to is the event's multiplier: measured."""
    import torch

    from privfair.clients.opacus_engine import NoisyMean
    from privfair.mechanisms.entropy import SystemEntropy

    size = 20_000
    work = PrivateWork(
        steps=1, sampling_rate=0.5, noise_multiplier=1.5, max_grad_norm=3.0, divisor=1.0, learning_rate=0.1
    )
    huge = torch.full((1, size), 1e3, dtype=torch.float64)
    clipped = NoisyMean(size, work, SystemEntropy()).of(iter([huge]))
    alone = NoisyMean(size, work, SystemEntropy()).of(iter([torch.zeros(0, size, dtype=torch.float64)]))
    (row,) = prices("statistical_parity", schema_of(SEX)).spends(training(work))
    assert isinstance(row.event, PoissonSampled)
    # the standard deviation of n normals has standard error σ/√(2n); 5 of them: a false alarm in 1.7 million
    scale = row.event.event.noise_scale * work.max_grad_norm / row.event.event.sensitivity
    assert float(alone.std()) == pytest.approx(scale, abs=5 * scale / (2 * size) ** 0.5)
    # the record's part, found by projection on its direction: at most C, plus noise of scale z·C
    part = float((clipped @ huge[0]) / torch.linalg.vector_norm(huge[0]))
    assert abs(part) <= work.max_grad_norm + 5 * scale
