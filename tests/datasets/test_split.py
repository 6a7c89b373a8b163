from __future__ import annotations

from collections import Counter
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privfair.datasets import load
from privfair.datasets.assembly import held_out
from privfair.datasets.csv_file import from_table
from privfair.datasets.table import Table

CONTENTS = st.lists(st.sampled_from([b"a", b"b", b"c", b"dd"]) | st.binary(max_size=4), max_size=12)


def sides(contents: list[bytes], seed: int) -> Counter[tuple[bytes, bool]]:
    """How often each content is on each side."""
    return Counter(zip(contents, held_out(contents, seed=seed, test_fraction=0.5).tolist(), strict=True))


@given(contents=CONTENTS, extra=st.sampled_from([b"a", b"b"]) | st.binary(max_size=4), data=st.data())
@settings(max_examples=200, deadline=None)
def test_one_record_more_moves_no_other_record(contents, extra, data) -> None:
    place = data.draw(st.integers(0, len(contents)))
    seed = data.draw(st.integers(0, 2**70))
    before = sides(contents, seed)
    after = sides([*contents[:place], extra, *contents[place:]], seed)
    assert sum((after - before).values()) == 1
    assert not before - after


@given(contents=CONTENTS, data=st.data())
@settings(max_examples=100, deadline=None)
def test_the_order_of_the_records_does_not_matter(contents, data) -> None:
    assert sides(data.draw(st.permutations(contents)), 3) == sides(contents, 3)


def test_the_expected_share_is_tested() -> None:
    """n = 20,000 independent decisions: off by more than 5 standard errors with probability below 1e-6."""
    n, share = 20_000, 0.25
    tested = held_out([i.to_bytes(4, "big") for i in range(n)], seed=0, test_fraction=share)
    assert abs(tested.mean() - share) <= 5 * sqrt(share * (1 - share) / n)


def test_identical_records_are_split_too() -> None:
    """All on one side has probability 2^(-199) for independent decisions."""
    assert 0 < held_out([b"same"] * 200, seed=0, test_fraction=0.5).sum() < 200


def test_seeds_split_independently() -> None:
    contents = [i.to_bytes(4, "big") for i in range(20_000)]
    one, two = (held_out(contents, seed=seed, test_fraction=0.5) for seed in (0, 1))
    assert abs((one == two).mean() - 0.5) <= 5 * sqrt(0.25 / len(contents))  # false alarm below 1e-6


def test_persons_stay_together() -> None:
    tested = held_out([b"anna", b"ben"] * 50, seed=1, test_fraction=0.5, together=True)
    assert len(set(tested[::2].tolist())) == len(set(tested[1::2].tolist())) == 1


def test_a_share_of_0_tests_nothing() -> None:
    assert not held_out([b"a", b"b"], seed=0, test_fraction=0.0).any()


ROWS = st.tuples(
    st.sampled_from(["20", "35", "?", "400"]),
    st.sampled_from(["x", "y", "?"]),
    st.sampled_from("01"),
    st.sampled_from("fm"),
)


@pytest.mark.parametrize("declared", [True, False])
@given(rows=st.lists(ROWS, min_size=1, max_size=10), extra=ROWS, data=st.data())
@settings(max_examples=30, deadline=None)
def test_one_row_more_in_a_file_moves_no_other_row(tmp_path_factory, declared, rows, extra, data) -> None:
    """The whole way from a file to a federation: with a declared schema even the encoding of the others stays."""
    schema = {"numeric": {"age": [0, 100]}, "categories": {"job": ["x"], "sex": ["f", "m"]}}
    path = tmp_path_factory.mktemp("split") / "data.csv"

    def counted(table: list[tuple[str, ...]]) -> Counter[tuple[object, ...]]:
        path.write_text("age,job,y,sex\n" + "".join(",".join(row) + "\n" for row in table))
        options = {"schema": schema} if declared else {"features": ["age"]}
        loaded = load("csv", path=path, label="y", sensitive="sex", test_fraction=0.5, **options).clients[0]
        return Counter(
            (side, records.labels[i], *(records.features[i].tolist() if declared else ()))
            for side, records in (("train", loaded.train), ("test", loaded.test))
            for i in range(len(records))
        )

    place = data.draw(st.integers(0, len(rows)))
    before = counted(rows)
    after = counted([*rows[:place], extra, *rows[place:]])
    assert sum((after - before).values()) == 1
    assert not before - after


def test_the_split_is_the_same_on_every_machine() -> None:
    """Pinned: results of a seed must not change between versions."""
    tested = held_out([bytes([i]) for i in range(16)], seed=0, test_fraction=0.5)
    np.testing.assert_array_equal(np.flatnonzero(tested), [4, 7, 8, 9, 10, 15])


def test_of_a_declared_schema_no_record_moves_another_one_or_its_sets() -> None:
    """Whether an undeclared column that a set compares holds numbers is not decided by all records together."""
    draw = np.random.default_rng(0)

    def number(most: float) -> str:
        return f"{draw.uniform(0, most):.3f}".replace(".", ",")

    rows = [
        [draw.choice(["n", "s"]), draw.choice(["f", "m"]), number(80), number(9000), "01"[n % 2]] for n in range(400)
    ]
    schema = {"numeric": {"age": [0, 100]}, "categories": {"sex": ["f", "m"], "branch": ["n", "s"]}}

    def divided(rows: list[list[str]]) -> dict[tuple[str, bytes], tuple[str, bytes]]:
        found = from_table(
            Table(("branch", "sex", "age", "extra", "y"), rows), seed=0, test_fraction=0.25, label="y", sensitive="sex",
            client="branch", features=["age"], conditions={"rich": "extra > 5000"}, schema=schema, decimal=",",
        )  # fmt: skip
        return {
            (client.name, part.features[n].tobytes()): (side, part.conditions[n].tobytes())
            for client in found.clients
            for side, part in (("train", client.train), ("test", client.test))
            for n in range(len(part))
        }

    before, after = divided(rows), divided([*rows, ["n", "f", "3,5", "abc", "1"]])
    assert len({one[1] for one in before.values()}) == 2
    assert {key: after[key] for key in before} == before
