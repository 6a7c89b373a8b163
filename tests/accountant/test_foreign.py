"""Spending done with other libraries comes in with its own convention, and unknown things are refused."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import dp_accounting as dp
import pytest

import accountant
from accountant.conversion import epsilon_from_rdp
from accountant.errors import InputError
from accountant.events import (
    Adjacency,
    Composed,
    DiscreteLaplace,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    Neighbouring,
    Nothing,
    NotPrivate,
    PoissonSampled,
    Repeated,
    Unit,
)
from accountant.interop import (
    dp_event_to_json,
    from_dp_event,
    from_dp_json,
    from_flower,
    from_opacus,
)
from accountant.rdp import rdp

ADD, REPLACE = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE
PLAN = dp.ComposedDpEvent(
    [
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1)), 100),
        dp.LaplaceDpEvent(3.0),
        dp.dp_event.DiscreteLaplaceDpEvent(0.5, 2),
        dp.NoOpDpEvent(),
    ]
)


def test_dp_accounting_events_under_both_adjacencies() -> None:
    assert from_dp_event(PLAN) == Composed(
        (
            Repeated(PoissonSampled(0.01, Gaussian(1.1)), 100),
            Laplace(3.0),
            DiscreteLaplace(2.0, 2),
            Nothing(),
        )
    )
    assert from_dp_event(PLAN, "replace-one", "client") == Composed(
        (
            Repeated(PoissonSampled(0.01, Gaussian(1.1, 2.0, REPLACE, Unit.CLIENT), 1.0), 100),
            Laplace(3.0, 2.0, REPLACE, Unit.CLIENT),
            DiscreteLaplace(2.0, 4, REPLACE, Unit.CLIENT),
            Nothing(),
        )
    )


def test_json_of_dp_accounting_events_needs_no_dp_accounting() -> None:
    text = json.dumps(dp_event_to_json(PLAN))
    assert from_dp_json(json.loads(text)) == from_dp_event(PLAN)
    named = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1)).to_named_tuple()._asdict()
    named["event"] = named["event"]._asdict()  # dp-accounting's own form, module names included
    assert from_dp_json(json.loads(json.dumps(named))) == PoissonSampled(0.01, Gaussian(1.1))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (dp.GaussianDpEvent(0.0), NotPrivate()),
        (dp.NonPrivateDpEvent(), NotPrivate()),
        (dp.PoissonSampledDpEvent(0.0, dp.GaussianDpEvent(1.0)), Nothing()),
        (dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(0.0)), NotPrivate()),
        (dp.PoissonSampledDpEvent(0.1, dp.NoOpDpEvent()), Nothing()),
        (dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 0), Nothing()),
    ],
)
def test_their_special_values(theirs: dp.DpEvent, ours: Event) -> None:
    assert from_dp_event(theirs) == ours


def test_several_gaussians_on_one_sample_are_one_with_less_noise() -> None:
    pair = dp.ComposedDpEvent([dp.GaussianDpEvent(3.0), dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 2)])
    found = from_dp_event(dp.PoissonSampledDpEvent(0.1, pair))
    assert isinstance(found, PoissonSampled)
    assert found.event.noise_multiplier == pytest.approx((1 / 9 + 2 / 16) ** -0.5)
    assert found.event.noise_multiplier < (1 / 9 + 2 / 16) ** -0.5 * (1 + 1e-15)
    mixed = dp.ComposedDpEvent([dp.GaussianDpEvent(3.0), dp.LaplaceDpEvent(1.0)])
    with pytest.raises(InputError, match="must all be Gaussian"):
        from_dp_event(dp.PoissonSampledDpEvent(0.1, mixed))


@pytest.mark.parametrize(
    "event",
    [
        dp.dp_event.UnsupportedDpEvent(),
        dp.dp_event.ZCDpEvent(0.5),
        dp.SampledWithReplacementDpEvent(100, 10, dp.GaussianDpEvent(1.0)),
        dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(1.0)),  # under add-or-remove
        "GaussianDpEvent",
    ],
)
def test_what_has_no_proved_bound_here_is_refused(event: object) -> None:
    with pytest.raises(InputError):
        from_dp_event(event)


def test_json_with_missing_or_extra_fields_is_refused() -> None:
    for data in (
        {"class_name": "GaussianDpEvent"},
        {"class_name": "GaussianDpEvent", "noise_multiplier": 1.0, "sensitivity": 0.1},
        {"noise_multiplier": 1.0},
        {"class_name": "ComposedDpEvent", "events": {}},
        [],
    ):
        with pytest.raises(InputError):
            from_dp_json(data)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("mechanism", ["rdp", "prv", "gdp"])
def test_opacus_state(mechanism: str) -> None:
    from opacus.accountants import create_accountant

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns that GDP may underestimate
        theirs = create_accountant(mechanism)
        for _ in range(30):
            theirs.step(noise_multiplier=1.1, sample_rate=0.02)
    state = json.loads(json.dumps(theirs.state_dict()))
    found = from_opacus(state)
    assert found == Composed((Repeated(PoissonSampled(0.02, Gaussian(1.1)), 30),))
    if mechanism == "rdp":
        alphas = [1 + x / 20 for x in range(1, 400)] + list(range(22, 500))
        assert accountant.epsilon(found) == pytest.approx(theirs.get_epsilon(1e-5, alphas=alphas), rel=1e-4)
    if mechanism == "prv":
        assert accountant.epsilon(found, method="pld") <= theirs.get_epsilon(1e-5, eps_error=0.01)


def test_opacus_without_poisson_sampling_gets_no_amplification() -> None:
    state = {"history": [(1.1, 0.02, 30), (0.0, 0.5, 1)], "mechanism": "rdp"}
    assert from_opacus(state, poisson_sampling=False) == Composed(
        (Repeated(Gaussian(1.1), 30), Repeated(NotPrivate(), 1))
    )


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"history": []},
        {"history": [], "mechanism": "moments"},
        {"history": 3, "mechanism": "rdp"},
        {"history": [(1.0, 0.1)], "mechanism": "rdp"},
        {"history": [(1.0, 64, 3)], "mechanism": "rdp"},
        {"history": [(1.0, 0.1, 0)], "mechanism": "rdp"},
        {"history": [(-1.0, 0.1, 1)], "mechanism": "rdp"},
    ],
)
def test_broken_opacus_states_are_refused(state: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        from_opacus(state)


def flower_state(sampling: str, relation: str) -> dict[str, Any]:
    """As flwr.supercore's RdpAccountant.state_dict() writes it (schema 1)."""
    return {
        "schema_version": 1,
        "backend": "rdp",
        "config": {
            "target_delta": 1e-6,
            "population_size": 1000,
            "neighboring_relation": relation,
            "sampling_method": sampling,
            "max_epsilon": None,
        },
        "orders": [2.0, 4.0, 8.0],
        "compositions": [
            {"event": {"noise_multiplier": 1.2, "sample_size": 10, "population_size": 1000}, "count": 3},
            {"event": {"noise_multiplier": 2.0, "sample_size": 20, "population_size": 1000}, "count": 1},
        ],
    }


def test_flower_state_is_about_clients() -> None:
    poisson = from_flower(json.loads(json.dumps(flower_state("poisson", "add-or-remove-one"))))
    assert poisson.neighbouring == Neighbouring(ADD, Unit.CLIENT)
    assert isinstance(poisson, Composed)
    assert poisson.events[0] == Repeated(
        PoissonSampled(math.nextafter(0.01, 1), Gaussian(1.2, 1.0, ADD, Unit.CLIENT)), 3
    )
    plain = from_flower(flower_state("no-amplification", "add-or-remove-one"))
    assert plain == Composed(
        (
            Repeated(Gaussian(1.2, 1.0, ADD, Unit.CLIENT), 3),
            Repeated(Gaussian(2.0, 1.0, ADD, Unit.CLIENT), 1),
        )
    )
    fixed = from_flower(flower_state("without-replacement", "replace-one"))
    assert isinstance(fixed, Composed)
    assert fixed.events[1] == Repeated(FixedSizeSampled(20, 1000, Gaussian(2.0, 2.0, REPLACE, Unit.CLIENT)), 1)


def test_flower_numbers_agree_with_dp_accounting_behind_it() -> None:
    found = from_flower(flower_state("poisson", "add-or-remove-one"))
    theirs = dp.rdp.RdpAccountant(orders=list(range(2, 200)))
    theirs.compose(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.2)), 3)
    theirs.compose(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(2.0)), 1)
    orders = list(range(2, 200))
    ours, _ = epsilon_from_rdp(orders, rdp(found, orders), 1e-6)
    assert ours == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-6)
    assert accountant.epsilon(found, 1e-6) <= ours


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"schema_version": True},
        {"backend": "pld"},
        {"config": {"neighboring_relation": "replace-one", "sampling_method": "poisson"}},
        {"config": None},
        {"compositions": [{"event": {"noise_multiplier": 1.0}, "count": 1}]},
    ],
)
def test_other_flower_states_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        from_flower({**flower_state("poisson", "add-or-remove-one"), **change})
