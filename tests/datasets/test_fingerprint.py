from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privfair.datasets import ClientData, Federation, Records, Schema, SensitiveAttribute, load


def toy(**changes) -> Federation:
    """Two clients with two training records and one test record each."""
    features = np.arange(12, dtype=np.float32).reshape(6, 2)
    values = {
        "features": features,
        "labels": [0, 1, 1, 0, 1, 0],
        "groups": [[0], [1], [0], [1], [0], [1]],
        "conditions": np.zeros((6, 1), dtype=bool),
        "names": ("one", "two"),
        "schema": Schema(("a", "b"), "binary", "y", (0.0, 1.0), (SensitiveAttribute("sex", ("f", "m")),), ("all",)),
        **changes,
    }
    records = Records(*(np.array(values[name]) for name in ("features", "labels", "groups", "conditions")))
    one, two = values["names"]
    clients = (
        ClientData(one, records.take([0, 1]), records.take([2])),
        ClientData(two, records.take([3, 4]), records.take([5])),
    )
    return Federation(changes.get("name", "toy"), values["schema"], clients, changes.get("notes", ()))


def changed(array, at, value) -> np.ndarray:
    copy = np.array(array)
    copy[at] = value
    return copy


FEATURES = np.arange(12, dtype=np.float32).reshape(6, 2)
DIFFERENT = {
    "value": {"features": changed(FEATURES, (0, 1), np.nextafter(np.float32(1), np.float32(2)))},
    "test value": {"features": changed(FEATURES, (5, 0), 3)},
    "label": {"labels": [1, 1, 1, 0, 1, 0]},
    "test label": {"labels": [0, 1, 1, 0, 1, 1]},
    "group": {"groups": [[1], [1], [0], [1], [0], [1]]},
    "condition": {"conditions": changed(np.zeros((6, 1), dtype=bool), (4, 0), True)},
    "client": {"names": ("one", "three")},
    "order of clients": {"names": ("two", "one")},
    "feature names": {"schema": replace(toy().schema, features=("a", "c"))},
    "label range": {"schema": replace(toy().schema, label_range=(0.0, 2.0))},
    "groups' names": {"schema": replace(toy().schema, sensitive=(SensitiveAttribute("sex", ("m", "f")),))},
}


@pytest.mark.parametrize("change", DIFFERENT)
def test_any_difference_changes_it(change) -> None:
    assert toy(**DIFFERENT[change]).fingerprint() != toy().fingerprint()


def test_all_those_differences_differ() -> None:
    prints = {toy(**changes).fingerprint() for changes in DIFFERENT.values()}
    assert len(prints) == len(DIFFERENT)
    assert all(len(text) == 32 and set(text) <= set("0123456789abcdef") for text in prints)


def test_moving_a_record_to_the_other_side_changes_it() -> None:
    one, two = toy().clients
    whole = Records.concatenate([one.train, one.test])
    moved = ClientData("one", whole.take([0]), whole.take([1, 2]))
    assert replace(toy(), clients=(moved, two)).fingerprint() != toy().fingerprint()


def test_equal_data_have_an_equal_one_whatever_they_are_called() -> None:
    schema = replace(toy().schema, label_range=(0, 1))
    assert toy(name="other", notes=("a note",), schema=schema).fingerprint() == toy().fingerprint()


def test_it_is_the_same_on_every_machine_and_in_every_release() -> None:
    """Runs are resumed by it: a change of this value forgets the data of all earlier runs."""
    assert toy().fingerprint() == "7baa13213f0452ac408f6fd2471647f0"


def test_a_dataset_keeps_it_and_another_seed_changes_it() -> None:
    assert load("synthetic").fingerprint() == load("synthetic").fingerprint()
    assert load("synthetic").fingerprint() != load("synthetic", seed=1).fingerprint()


def test_a_file_keeps_it_wherever_it_is(write) -> None:
    text = "a,y,s\n1,0,f\n2,1,m\n3,1,f\n"
    one, two = (load("csv", path=write(text, name), label="y", sensitive="s") for name in ("one.csv", "two.csv"))
    assert one.fingerprint() == two.fingerprint()
