"""The replica: steps from opened sums, averaging, checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.federated.messages import Parameters, Sealed
from privfair.federated.model_state import FedAvg, Replica
from privfair.secure_aggregation import aggregators

CLIENT, SERVER = aggregators("plain", None, fixed_point=None)


def replica(**options: int) -> Replica:
    return Replica(np.zeros(3), FedAvg(), CLIENT, **options)  # type: ignore[arg-type]


def total(*deltas: float) -> bytes:
    return SERVER.add([CLIENT.contribute(np.full(3, d), 1.0) for d in deltas])


def test_a_sealed_sum_is_opened_once() -> None:
    found = replica()
    message = Sealed(1, total(1.0, 2.0))
    for _ in range(2):
        np.testing.assert_array_equal(found.at(message).values, np.full(3, 3.0))
    assert found.round == 1


def test_a_sum_of_another_round_is_refused() -> None:
    with pytest.raises(InputError, match="model must be of round 0 or the next; found 2"):
        replica().at(Sealed(2, total(1.0)))


def test_the_result_is_the_mean_of_the_last_models() -> None:
    found = replica(average_after=2)
    models = []
    for delta in (1.0, -3.0, 5.0, 2.0, -0.5):
        found.advance(total(delta))
        models.append(found.parameters[0])
    assert found.result[0] == pytest.approx(np.mean(models[2:]))
    np.testing.assert_array_equal(found.result_at(Parameters(np.ones(3))), np.ones(3))
    again = replica(average_after=2)
    again.restore(found.state())
    again.advance(total(1.0))
    found.advance(total(1.0))
    np.testing.assert_array_equal(again.result, found.result)


def test_before_averaging_begins_the_result_is_the_last_model() -> None:
    found = replica(average_after=2)
    found.advance(total(1.0))
    np.testing.assert_array_equal(found.result, found.parameters)


def test_a_sum_that_is_not_finite_changes_nothing() -> None:
    found = replica()
    with pytest.raises(InputError, match="sum of updates must be finite"):
        found.advance(total(np.nan))
    assert found.round == 0
    np.testing.assert_array_equal(found.parameters, np.zeros(3))
