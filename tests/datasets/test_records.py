from __future__ import annotations

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.datasets import ClientData, Federation, Records, Schema, SensitiveAttribute


def records(n: int = 4, d: int = 2) -> Records:
    return Records(
        np.arange(n * d, dtype=np.float32).reshape(n, d),
        (np.arange(n) % 2).astype(np.float32),
        (np.arange(n) % 2)[:, None],
        np.zeros((n, 0), dtype=np.bool_),
    )


def schema(**changes) -> Schema:
    fields = {
        "features": ("a", "b"),
        "task": "binary",
        "label": "y",
        "label_range": (0.0, 1.0),
        "sensitive": (SensitiveAttribute("sex", ("f", "m")),),
    }
    return Schema(**{**fields, **changes})


class TestRecords:
    def test_arrays_cannot_be_written_to_by_anybody(self) -> None:
        mine = np.zeros((2, 1), dtype=np.float32)
        held = Records(mine, np.zeros(2, dtype=np.float32), np.zeros((2, 1), dtype=np.int64), np.zeros((2, 0), bool))
        mine[0, 0] = 7
        assert held.features[0, 0] == 0
        for array in (held.features, held.labels, held.groups, held.conditions):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1

    def test_a_read_only_view_of_somebody_elses_array_is_copied(self) -> None:
        mine = np.zeros((2, 1), dtype=np.float32)
        view = mine[:]
        view.flags.writeable = False
        held = Records(view, np.zeros(2), np.zeros((2, 1), dtype=np.int64), np.zeros((2, 0), dtype=bool))
        mine[0, 0] = 7
        assert held.features[0, 0] == 0

    def test_types_are_fixed(self) -> None:
        held = Records(np.zeros((2, 1)), np.zeros(2), np.zeros((2, 1), dtype=np.int32), np.zeros((2, 1)))
        assert [a.dtype for a in (held.features, held.labels, held.groups, held.conditions)] == [
            np.float32,
            np.float32,
            np.int64,
            np.bool_,
        ]

    def test_take_by_positions_mask_and_nothing(self) -> None:
        whole = records(5)
        np.testing.assert_array_equal(whole.take([3, 0, 0]).features, whole.features[[3, 0, 0]])
        np.testing.assert_array_equal(whole.take(whole.labels == 1).labels, [1, 1])
        nothing = whole.take([])
        assert len(nothing) == 0
        assert nothing.features.shape == (0, 2)
        assert not whole.take([1]).features.flags.writeable

    def test_concatenate_undoes_a_split(self) -> None:
        whole = records(5)
        back = Records.concatenate([whole.take([0, 1]), whole.take([]), whole.take([2, 3, 4])])
        for name in ("features", "labels", "groups", "conditions"):
            np.testing.assert_array_equal(getattr(back, name), getattr(whole, name))

    def test_concatenating_nothing_is_an_error(self) -> None:
        with pytest.raises(InputError, match="at least one set of records"):
            Records.concatenate([])

    def test_wrong_shapes_are_named(self) -> None:
        with pytest.raises(InputError, match=r"groups must have 2 dimension\(s\); found .shape \(2,\)"):
            Records(np.zeros((2, 1)), np.zeros(2), np.zeros(2), np.zeros((2, 0)))
        with pytest.raises(InputError, match=r"features must have one row per label, 2; found 3"):
            Records(np.zeros((3, 1)), np.zeros(2), np.zeros((2, 1)), np.zeros((2, 0)))


class TestSchema:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"task": "ranking"}, "task must be 'binary' or 'regression'"),
            ({"label_range": (1.0, 1.0)}, "label_range must be two finite numbers"),
            ({"label_range": (0.0, float("inf"))}, "label_range must be two finite numbers"),
            ({"sensitive": ()}, "sensitive must name at least one"),
            ({"sensitive": (SensitiveAttribute("sex", ("f", "f")),)}, "values of sex must be different"),
        ],
    )
    def test_nonsense_is_refused(self, changes, message) -> None:
        with pytest.raises(InputError, match=message):
            schema(**changes)


class TestFederation:
    def test_pooled_records_are_those_of_all_clients(self) -> None:
        whole = records(6)
        one = ClientData("one", whole.take([0, 1]), whole.take([2]))
        two = ClientData("two", whole.take([3]), whole.take([4, 5]))
        federation = Federation("toy", schema(), (one, two))
        np.testing.assert_array_equal(federation.pooled_train().features, whole.features[[0, 1, 3]])
        np.testing.assert_array_equal(federation.pooled_test().features, whole.features[[2, 4, 5]])

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (Records(np.zeros((1, 3)), [0], [[0]], np.zeros((1, 0))), "must have 2 columns; found 3"),
            (Records([[0, np.nan]], [0], [[0]], np.zeros((1, 0))), "must be finite"),
            (Records(np.zeros((1, 2)), [0.5], [[0]], np.zeros((1, 0))), "labels of one .* must be 0 or 1"),
            (Records(np.zeros((1, 2)), [0], [[2]], np.zeros((1, 0))), "must be indices of the 2 values of sex"),
            (Records(np.zeros((1, 2)), [0], [[0]], np.zeros((1, 1))), "conditions of one .* must have 0 columns"),
        ],
    )
    def test_records_that_do_not_fit_the_schema_are_refused(self, bad, message) -> None:
        with pytest.raises(InputError, match=message):
            Federation("toy", schema(), (ClientData("one", bad, records(0)),))

    def test_regression_labels_must_be_in_their_range(self) -> None:
        regression = schema(task="regression", label_range=(0.0, 0.1))
        edge = Records(np.zeros((2, 2)), [0.0, 0.1], [[0], [1]], np.zeros((2, 0)))
        Federation("toy", regression, (ClientData("one", edge, records(0)),))
        with pytest.raises(InputError, match="must be in the range"):
            Federation("toy", regression, (ClientData("one", records(2), records(0)),))

    def test_clients_need_names_of_their_own(self) -> None:
        client = ClientData("one", records(), records(0))
        with pytest.raises(InputError, match="must have different names"):
            Federation("toy", schema(), (client, client))
        with pytest.raises(InputError, match="must be at least one"):
            Federation("toy", schema(), ())
