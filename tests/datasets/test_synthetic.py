from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.datasets import Records, load


def all_records(client) -> Records:
    return Records.concatenate([client.train, client.test])


def test_the_papers_setting() -> None:
    federation = load("synthetic")
    assert len(federation.clients) == 10
    assert [len(all_records(client)) for client in federation.clients] == [200] * 10
    assert federation.schema.features == tuple(f"x{i}" for i in range(1, 11))
    assert not federation.schema.inferred


def test_labels_are_the_sign_of_the_sum() -> None:
    pooled = load("synthetic").pooled_train()
    sums = pooled.features.sum(axis=1, dtype=np.float64)
    clear = np.abs(sums) > 1e-4  # features are rounded to float32 after the label is computed
    np.testing.assert_array_equal(pooled.labels[clear], sums[clear] > 0)


@pytest.mark.parametrize("alpha", [1.0, 0.8, 0.5])
def test_every_client_has_the_stated_mixture(alpha) -> None:
    """Mean of x_i given k and A is (2α − 1)·(±1), its variance 1 + 4α(1 − α); 8 means, 5 s.e.: false alarm < 1e-5."""
    n, d = 20_000, 2
    federation = load("synthetic", clients=2, records=n, dimensions=d, alpha=alpha, seed=5)
    for k, client in enumerate(federation.clients, start=1):
        records = all_records(client)
        for a in (0, 1):
            x = records.features[records.groups[:, 0] == a]
            expected = (2 * alpha - 1) * (1 if (k + a) % 2 == 0 else -1)
            error = sqrt((1 + 4 * alpha * (1 - alpha)) / len(x))
            assert np.abs(x.mean(axis=0) - expected).max() <= 5 * error


def test_a_perfect_classifier_is_fair_on_the_test_records() -> None:
    test = load("synthetic", seed=3).pooled_test()
    assert len(test) == 500
    rates = [test.labels[test.groups[:, 0] == a].mean() for a in (0, 1)]
    assert abs(rates[0] - rates[1]) <= 0.02  # 250 records a group, about one in a thousand crosses the boundary


def test_groups_are_fair_coins() -> None:
    groups = load("synthetic", records=2000, seed=1, balanced=False).pooled_train().groups
    assert abs(groups.mean() - 0.5) <= 5 * sqrt(0.25 / len(groups))  # false alarm below 1e-6


def test_sizes_of_the_second_ablation() -> None:
    sizes = [50, 150, 250, 100, 50, 100]
    federation = load("synthetic", sizes=sizes, alpha=0.5)
    assert [len(all_records(client)) for client in federation.clients] == sizes


def test_the_attribute_as_a_feature_changes_nothing_else() -> None:
    plain, more = load("synthetic", seed=2), load("synthetic", seed=2, attribute_as_feature=True)
    assert more.schema.features[-1] == "A"
    for a, b in zip(plain.clients, more.clients, strict=True):
        np.testing.assert_array_equal(a.test.features, b.test.features[:, :-1])
        np.testing.assert_array_equal(b.test.features[:, -1], b.test.groups[:, 0])


def test_a_seed_gives_the_same_data_again_and_another_other_data() -> None:
    one, same, other = (load("synthetic", seed=seed).pooled_train().features for seed in (4, 4, 5))
    np.testing.assert_array_equal(one, same)
    assert one.shape != other.shape or not np.array_equal(one, other)


def test_a_thousand_clients() -> None:
    federation = load("synthetic", clients=1000, records=3)
    assert len(federation.clients) == 1000
    assert len(federation.pooled_train()) + len(federation.pooled_test()) == 3000
    assert any("of 1000 clients have no test records" in note for note in federation.notes)


def test_one_client_with_one_record() -> None:
    federation = load("synthetic", clients=1, records=1, test_fraction=0.0)
    assert len(federation.pooled_train()) == 1
    assert len(federation.pooled_test()) == 0
    assert federation.notes == ("1 of 1 clients have no test records: client-1.",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "clients must be a whole number, at least 1; found 0"),
        ({"clients": 2.5}, "clients must be a whole number; found 2.5"),
        ({"records": True}, "records must be a whole number"),
        ({"sizes": "50,50"}, r"sizes must be a list of whole numbers.*For example \[50"),
        ({"sizes": []}, "sizes must be a list"),
        ({"sizes": [5, 0]}, "sizes must be a whole number, at least 1"),
        ({"sizes": [5, 5], "clients": 3}, "clients must agree with sizes, which has 2"),
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\]; found 1.5"),
        ({"alpha": float("nan")}, "alpha must be finite"),
        ({"dimensions": 0}, "dimensions must be a whole number, at least 1"),
        ({"attribute_as_feature": "yes"}, "attribute_as_feature must be true or false"),
    ],
)
def test_nonsense_is_explained(options, message) -> None:
    with pytest.raises(InputError, match=message):
        load("synthetic", **options)
