"""Who paid for what: clients in parallel, groups of one attribute in parallel, channels, rounds, changes of group."""

from __future__ import annotations

import math
import subprocess
import sys

import dp_accounting as dp
import pytest

import accountant
from accountant import Accountant
from accountant.bounds import best_order, spent
from accountant.errors import InputError
from accountant.events import (
    Adjacency,
    Composed,
    DiscreteLaplace,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    NeighbouringMismatch,
    NotPrivate,
    PoissonSampled,
    Repeated,
    Unit,
    as_replaced,
)
from accountant.rdp import Array, rdp

STEP, SCORES, SMALL, COUNTS = (
    PoissonSampled(0.05, Gaussian(1.2)),
    PoissonSampled(0.1, Laplace(1.0)),
    PoissonSampled(0.4, Laplace(1.0)),
    DiscreteLaplace(2.0, 1),
)
DELTA = 1e-5


def cost(*events: object) -> float:
    return accountant.epsilon(list(events), DELTA)


def federation() -> Accountant:
    """Two clients; counts before the run, three rounds of scores per group and of updates."""
    books = Accountant()
    for client, steps in (("north", 10), ("south", 20)):
        books.compose(COUNTS, client=client, channel="counts")
        for number in range(3):
            books.compose(SCORES, client=client, group="sex=M", channel="scores", round=number)
            books.compose(SMALL, client=client, group="sex=F", channel="scores", round=number)
            books.compose(STEP, steps, client=client, channel="updates", round=number)
    return books


def test_the_run_costs_what_its_worst_record_pays() -> None:
    books = federation()
    women_in_the_south = cost(COUNTS, Repeated(SMALL, 3), Repeated(STEP, 60))
    assert books.epsilon(DELTA) == pytest.approx(women_in_the_south)
    assert books.by_client(DELTA) == pytest.approx(
        {"north": cost(COUNTS, Repeated(SMALL, 3), Repeated(STEP, 30)), "south": women_in_the_south}
    )


def test_a_small_group_pays_more() -> None:
    found = federation().by_group(DELTA, client="north")
    assert found == pytest.approx(
        {
            "sex=F": cost(COUNTS, Repeated(SMALL, 3), Repeated(STEP, 30)),
            "sex=M": cost(COUNTS, Repeated(SCORES, 3), Repeated(STEP, 30)),
        }
    )
    assert found["sex=F"] > found["sex=M"]


def test_channels_by_themselves_and_rounds_so_far() -> None:
    books = federation()
    assert books.by_channel(DELTA) == pytest.approx(
        {"counts": cost(COUNTS), "scores": cost(Repeated(SMALL, 3)), "updates": cost(Repeated(STEP, 60))}
    )
    rounds = books.by_round(DELTA)
    assert list(rounds) == [0, 1, 2]
    assert rounds[0] == pytest.approx(cost(COUNTS, SMALL, Repeated(STEP, 20)))
    assert rounds[0] < rounds[1] < rounds[2] == books.epsilon(DELTA)


def test_groups_of_different_attributes_overlap() -> None:
    books = Accountant()
    for group in ("sex=F", "sex=M", "race=A", "race=B"):
        books.compose(Laplace(4.0), group=group)
    assert books.epsilon(0.0) == pytest.approx(0.5)  # one release per attribute


def test_releases_over_all_clients_add_to_every_client() -> None:
    books = Accountant().compose(Laplace(4.0)).compose(Laplace(2.0), client="north")
    books.compose(Laplace(8.0), client="south")
    assert books.by_client(0.0) == pytest.approx({"north": 0.75, "south": 0.375})


def test_rdp_and_pld_side_by_side() -> None:
    books = federation()
    by_rdp, by_pld = books.spent(DELTA, "rdp"), books.spent(DELTA, "pld")
    assert by_pld.epsilon < by_rdp.epsilon < 1.2 * by_pld.epsilon
    assert by_rdp.neighbouring == by_pld.neighbouring == books.neighbouring


def test_a_channel_without_noise_makes_the_run_infinite_and_the_others_not() -> None:
    books = federation().compose(NotPrivate(), client="north", channel="debug")
    assert books.epsilon(DELTA) == math.inf
    assert books.by_channel(DELTA)["debug"] == math.inf
    assert books.by_client(DELTA)["south"] < 10


def test_nothing_composed_costs_nothing() -> None:
    assert Accountant().epsilon() == 0.0
    assert Accountant().by_client() == {"": 0.0}


def test_compose_accepts_and_refuses_before_anything_is_added() -> None:
    books = Accountant()
    replaced = Gaussian(1.0, 2.0, Adjacency.REPLACE_ONE)
    of_clients = Gaussian(1.0, unit=Unit.CLIENT)
    for event in (STEP, NotPrivate(), dp.GaussianDpEvent(1.0)):
        assert Accountant().compose(event).releases
    for event in (replaced, of_clients, "gaussian", dp.dp_event.UnsupportedDpEvent()):
        with pytest.raises(InputError):
            books.compose(event)
    with pytest.raises(NeighbouringMismatch, match="add or remove one record"):
        books.compose(replaced)
    assert books.releases == ()  # nothing half-done


def test_labels_are_checked_before_anything_is_added() -> None:
    books = Accountant()
    for labels in ({"group": "F"}, {"count": 0}, {"round": -1}, {"client": " north"}):
        with pytest.raises(InputError):
            books.compose(STEP, **labels)
    assert books.releases == ()
    books.compose(STEP, client="north")
    with pytest.raises(InputError, match="client must be one of"):
        books.epsilon(DELTA, client="nroth")


def test_changing_a_persons_group_composes_both_groups_and_replaces_the_record_for_everybody() -> None:
    books = federation()
    found = books.spent_on_changing_group("north", "sex=F", "sex=M", DELTA)
    replaced_step = PoissonSampled(0.05, Gaussian(1.2, 2.0, Adjacency.REPLACE_ONE), 1.0)
    replaced_counts = DiscreteLaplace(2.0, 2, Adjacency.REPLACE_ONE)

    def curve(orders: tuple[float, ...]) -> Array:
        grouped = 3 * rdp(SMALL, orders) + 3 * rdp(SCORES, orders)
        return grouped + 30 * rdp(replaced_step, orders) + rdp(replaced_counts, orders)

    assert found.epsilon == pytest.approx(best_order(curve, DELTA)[0])
    assert found.epsilon > books.epsilon(DELTA, client="north")
    assert found.epsilon == books.spent_on_changing_group("north", "sex=M", "sex=F", DELTA).epsilon
    for old, new in (("sex=F", "sex=F"), ("sex=F", "race=A"), ("sex=Y", "sex=X")):
        with pytest.raises(InputError):
            books.spent_on_changing_group("north", old, new, DELTA)
    with pytest.raises(InputError, match="nothing hides who is in which"):
        Accountant("replace-one").spent_on_changing_group("north", "sex=F", "sex=M")


def test_changing_a_persons_group_also_replaces_it_in_the_dearest_group_of_another_attribute() -> None:
    books = Accountant()
    for group, noise in (("sex=F", 2.0), ("sex=M", 2.0), ("race=A", 3.0), ("race=B", 1.5)):
        books.compose(Gaussian(noise), client="north", group=group)
    found = books.spent_on_changing_group("north", "sex=F", "sex=M", DELTA)

    def curve(orders: tuple[float, ...]) -> Array:
        return 2 * rdp(Gaussian(2.0), orders) + rdp(as_replaced(Gaussian(1.5)), orders)

    assert found.epsilon == pytest.approx(best_order(curve, DELTA)[0])


def test_changing_to_a_group_that_released_nothing_costs_the_removal_and_the_replacement() -> None:
    books = Accountant().compose(Gaussian(0.3), group="sex=F").compose(Gaussian(1.0), client="north")
    expected = best_order(lambda o: rdp(Gaussian(0.3), o) + rdp(as_replaced(Gaussian(1.0)), o), DELTA)[0]
    for old, new in (("sex=F", "sex=other"), ("sex=other", "sex=F")):
        assert books.spent_on_changing_group("north", old, new, DELTA).epsilon == pytest.approx(expected)


def test_changing_an_attribute_moves_the_record_between_combined_groups_too() -> None:
    books = Accountant().compose(Gaussian(2.0), group="sex=F")
    for group in ("sex,race=F,B", "sex,race=M,B"):
        books.compose(PoissonSampled(0.5, Laplace(3.0)), group=group)
    found = books.spent_on_changing_group("", "sex=F", "sex=M", 1e-3).epsilon
    moved = best_order(lambda o: rdp(Gaussian(2.0), o) + 2 * rdp(PoissonSampled(0.5, Laplace(3.0)), o), 1e-3)[0]
    assert found >= moved * (1 - 1e-12)


def shared_and_own() -> Accountant:
    """A shared release, one of client A's women, one of client B."""
    books = Accountant().compose(Gaussian(1.0), channel="shared", round=0)
    books.compose(Gaussian(5.0), client="A", group="sex=F", channel="scores", round=1)
    return books.compose(Gaussian(0.2), client="B", channel="updates", round=1)


def test_every_record_pays_for_the_shared_releases() -> None:
    books = shared_and_own()
    shared, at_b = cost(Gaussian(1.0)), cost(Gaussian(1.0), Gaussian(0.2))
    assert books.by_group(DELTA) == pytest.approx({"sex=F": at_b})  # women at B pay for B's release
    assert books.epsilon(DELTA, client="B", group="sex=F") == pytest.approx(at_b)
    assert books.by_group(DELTA, client="A") == pytest.approx({"sex=F": cost(Gaussian(1.0), Gaussian(5.0))})
    assert books.epsilon(DELTA, client="B", channel="shared") == pytest.approx(shared)
    expected = {"scores": 0.0, "shared": shared, "updates": cost(Gaussian(0.2))}
    assert books.by_channel(DELTA, client="B") == pytest.approx(expected)
    assert books.by_round(DELTA, client="A") == pytest.approx({0: shared, 1: cost(Gaussian(1.0), Gaussian(5.0))})
    assert books.epsilon(DELTA, client="") == pytest.approx(at_b)


def test_many_attributes_are_bounded_without_listing_every_kind_of_record() -> None:
    books = Accountant()
    for attribute in "abcdef":
        for number in range(8):
            books.compose(Gaussian(10.0 + number), group=f"{attribute}={number}")
    expected = cost(Repeated(Gaussian(10.0), 6))
    assert books.epsilon(DELTA) == pytest.approx(expected, rel=1e-9)
    assert books.spent(DELTA, "pld").method == "rdp"
    assert books.spent(DELTA, "pld").epsilon == pytest.approx(expected, rel=1e-9)
    last = cost(Repeated(Gaussian(10.0), 5), Gaussian(17.0))
    assert books.epsilon(DELTA, group="a=7") == pytest.approx(last, rel=1e-9)


def test_a_replacement_moves_twice_as_far() -> None:
    assert as_replaced(Composed((Repeated(STEP, 2), NotPrivate()))) == Composed(
        (Repeated(PoissonSampled(0.05, Gaussian(1.2, 2.0, Adjacency.REPLACE_ONE), 1.0), 2), NotPrivate())
    )
    fixed = FixedSizeSampled(1, 2, Gaussian(1.0, adjacency=Adjacency.REPLACE_ONE))
    assert as_replaced(fixed.event) == fixed.event
    with pytest.raises(InputError):
        as_replaced(fixed)


def test_module_level_epsilon_takes_events_lists_and_dp_accounting_events() -> None:
    theirs = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.2)), 60)
    ours = Repeated(STEP, 60)
    assert accountant.epsilon(theirs) == accountant.epsilon(ours) == accountant.epsilon([ours])
    assert accountant.epsilon([theirs, Laplace(3.0)]) == pytest.approx(cost(ours, Laplace(3.0)))
    assert spent(theirs).epsilon <= dp.rdp.RdpAccountant().compose(theirs).get_epsilon(1e-5) * (1 + 1e-6)
    for wrong in (3, "gaussian", {"kind": "gaussian"}):
        with pytest.raises(InputError):
            accountant.epsilon(wrong)


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, accountant; heavy = {'numpy', 'scipy', 'dp_accounting', 'sqlalchemy', 'torch', 'opacus'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "accountant.epsilon([accountant.Gaussian(1.0)]);"
        "late = {'dp_accounting', 'sqlalchemy', 'torch', 'opacus', 'flwr', 'privfair'};"
        "assert not late & set(sys.modules), late & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_resolves() -> None:
    for name in accountant.__all__:
        assert getattr(accountant, name) is not None
    assert set(accountant.__all__) <= set(dir(accountant))
    with pytest.raises(AttributeError, match="no attribute 'epsilom'"):
        _ = accountant.epsilom
