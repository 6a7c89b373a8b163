"""Events: what they refuse, what they mean, and that JSON brings them back exactly."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.errors import InputError
from accountant.events import (
    Adjacency,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    Neighbouring,
    NeighbouringMismatch,
    Nothing,
    NotPrivate,
    PoissonSampled,
    Repeated,
    Unit,
    canonical_json,
    count_parts,
)

ADD, REPLACE = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE
positive = st.floats(1e-6, 1e6)
rates = st.floats(0.0, 1.0, exclude_min=True)


def mechanisms(adjacency: Adjacency, unit: Unit) -> st.SearchStrategy[Event]:
    labels = {"adjacency": st.just(adjacency), "unit": st.just(unit)}
    continuous = [st.builds(kind, positive, positive, **labels) for kind in (Gaussian, Laplace)]
    whole = st.integers(1, 1000)
    grid = [st.builds(kind, positive, whole, step=positive, **labels) for kind in (DiscreteGaussian, DiscreteLaplace)]
    return st.one_of(*continuous, *grid)


@st.composite
def events(draw: st.DrawFn) -> Event:
    adjacency, unit = draw(st.sampled_from(Adjacency)), draw(st.sampled_from(Unit))
    one = mechanisms(adjacency, unit)
    kinds = [one, st.builds(PoissonSampled, rates, one), st.just(Nothing()), st.just(NotPrivate())]
    if adjacency is REPLACE:
        sizes = st.integers(1, 50)
        kinds.append(st.builds(lambda m, n, e: FixedSizeSampled(m, m + n, e), sizes, sizes, one))
    return draw(
        st.recursive(
            st.one_of(*kinds),
            lambda inner: st.one_of(
                st.builds(lambda parts: Composed(tuple(parts)), st.lists(inner, max_size=3)),
                st.builds(Repeated, inner, st.integers(1, 1000)),
            ),
            max_leaves=6,
        )
    )


@given(events())
@settings(max_examples=80, deadline=None)
def test_json_brings_back_an_equal_event(event: Event) -> None:
    text = canonical_json(event)
    back = Event.from_json(json.loads(text))
    assert back == event
    assert hash(back) == hash(event)
    assert canonical_json(back) == text


def test_canonical_text_is_fixed_for_all_time() -> None:
    event = Repeated(PoissonSampled(0.1, Gaussian(1.1)), 3)
    assert canonical_json(event) == (
        '{"count":3,"event":{"event":{"adjacency":"add-or-remove","kind":"gaussian","noise_scale":1.1,'
        '"sensitivity":1.0,"unit":"record"},"kind":"poisson-sampled","rate":0.1},"kind":"repeated","version":1}'
    )


def test_equal_releases_are_equal_objects_whatever_number_type_they_came_from() -> None:
    assert Gaussian(2, 1, "add-or-remove", "record") == Gaussian(2.0)
    assert canonical_json(Gaussian(2)) == canonical_json(Gaussian(2.0))
    assert len({DiscreteLaplace(2.0, 3.0), DiscreteLaplace(2, 3)}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "event version must be 1; found 2"),
        ({"kind": "gauss"}, "event kind must be one of"),
        ({"sigma": 1.0}, "a field of a gaussian event must be one of"),
        ({"noise_scale": None}, "noise_scale must be a number"),
        ({"adjacency": "swap"}, "adjacency must be one of"),
        ({"unit": "user"}, "unit must be one of"),
    ],
)
def test_json_that_means_something_else_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Event.from_json({**Gaussian(1.0).to_json(), **change})


def test_json_must_name_every_field_that_matters() -> None:
    data = Gaussian(1.0).to_json()
    del data["adjacency"]
    with pytest.raises(InputError, match=r"needs the fields \['adjacency'\]"):
        Event.from_json(data)
    with pytest.raises(InputError, match="must be a JSON object"):
        Event.from_json({"version": 1, "kind": "repeated", "count": 2, "event": "gaussian"})


def test_a_batch_size_is_not_a_sampling_rate() -> None:
    with pytest.raises(InputError) as caught:
        PoissonSampled(64, Gaussian(1.0))
    assert str(caught.value) == ("sampling_rate must be in (0, 1]; found 64. It is a probability, not a batch size.")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True, "one", None])
def test_noise_and_sensitivity_are_finite_numbers_above_zero(value: object) -> None:
    with pytest.raises(InputError):
        Gaussian(value)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InputError):
        Laplace(1.0, value)  # type: ignore[arg-type]  # wrong on purpose


def test_sensitivity_on_a_grid_is_a_whole_number_of_steps() -> None:
    with pytest.raises(InputError, match="Put the clipping bounds on the grid"):
        DiscreteGaussian(3.0, 1.5)  # type: ignore[arg-type]  # wrong on purpose


def test_mixed_neighbours_never_compose() -> None:
    with pytest.raises(NeighbouringMismatch, match="must speak of the same neighbours"):
        Composed((Gaussian(1.0), Gaussian(1.0, adjacency=REPLACE)))
    with pytest.raises(NeighbouringMismatch):
        Composed((Gaussian(1.0), Repeated(PoissonSampled(0.1, Laplace(1.0, unit=Unit.CLIENT)), 2)))
    fitting = Composed((Gaussian(1.0), NotPrivate(), Nothing()))
    assert fitting.neighbouring == Neighbouring(ADD, Unit.RECORD)


def test_fixed_size_sampling_is_refused_where_the_population_is_a_secret() -> None:
    with pytest.raises(InputError, match="shows the population, which add-or-remove has to hide"):
        FixedSizeSampled(10, 100, Gaussian(1.0))
    with pytest.raises(InputError, match="A unit is drawn at most once"):
        FixedSizeSampled(11, 10, Gaussian(1.0, adjacency=REPLACE))


def test_the_rate_of_fixed_size_sampling_is_never_rounded_down() -> None:
    from fractions import Fraction

    for population in range(1, 400, 7):
        for sample in range(1, population + 1, 11):
            event = FixedSizeSampled(sample, population, Gaussian(1.0, adjacency=REPLACE))
            assert Fraction(event.rate) >= Fraction(sample, population)
            assert event.rate <= 1


def test_only_one_mechanism_can_be_sampled() -> None:
    with pytest.raises(InputError, match="must be one Gaussian, Laplace"):
        PoissonSampled(0.1, Repeated(Gaussian(1.0), 2))  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InputError, match="from_dp_event"):
        Composed(("gaussian",))  # type: ignore[arg-type]  # wrong on purpose


def test_presence_sensitivity_is_checked() -> None:
    replaced = Gaussian(1.0, 2.0, REPLACE)
    assert PoissonSampled(0.1, replaced).presence == 2.0
    assert PoissonSampled(0.1, replaced, 1.0).presence == 1.0
    with pytest.raises(InputError, match="at most twice as far"):
        PoissonSampled(0.1, replaced, 0.9)
    with pytest.raises(InputError, match="Raise the sensitivity"):
        PoissonSampled(0.1, replaced, 2.1)
    with pytest.raises(InputError, match="is for replace-one only"):
        PoissonSampled(0.1, Gaussian(1.0), 1.0)
    with pytest.raises(InputError, match="whole number of grid steps"):
        PoissonSampled(0.1, DiscreteLaplace(1.0, 2, REPLACE), 1.5)


def test_count_parts_takes_compositions_apart_and_drops_nothing() -> None:
    step, count = PoissonSampled(0.1, Gaussian(1.0)), Laplace(2.0)
    run = Repeated(Composed((Repeated(step, 10), count, Composed((step, Nothing())))), 3)
    assert count_parts(run) == {step: 33, count: 3, Nothing(): 3}


def test_counts_are_whole_and_at_least_one() -> None:
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(InputError):
            Repeated(Gaussian(1.0), wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_nested_repetitions_stay_countable() -> None:
    assert Repeated(Gaussian(1.0), 2**53).count == 2**53
    inner = Composed((Repeated(Gaussian(1.0), 2**40), Nothing()))
    for event, count in ((Gaussian(1.0), 2**53 + 1), (inner, 2**14), (inner, 10**300)):
        with pytest.raises(InputError, match="nested repetitions multiplied"):
            Repeated(event, count)
    with pytest.raises(InputError, match="must be below 1e308"):
        Repeated(Gaussian(1.0), 10**400)
    with pytest.raises(InputError, match="must be below 1e308"):
        Gaussian(10**5000)
