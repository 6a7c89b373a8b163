"""One data holder that sends whatever it likes: the others' run ends as if it had not been there."""

from __future__ import annotations

import io
import tempfile
import tracemalloc
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, load_file, save

from privfair.deployment.flower.link import RECORD, wrap
from privfair.deployment.protocol import MOST_TEXT, printable
from privfair.federated.exchange import encode
from privfair.federated.messages import Scores
from privfair.runs.folder import Checkpoint
from privfair.secure_aggregation.ciphertext import Ciphertext
from tests.flower.federations import PRIVATE, Deployment, deployment
from tests.flower.memory_grid import Meddle
from tests.flower.test_faults import ENCRYPTED, QUANTISED, order
from tests.tampering import of_values, with_values

Change = Callable[[dict[str, Any]], None]
HOSTILE = 101
SHORT = {"federation": {"rounds": 2}}


def from_the_start(asked: str, change: Change) -> Meddle:
    """A node whose answers to one kind of question are changed, always."""

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        reply = answer()
        if node == HOSTILE and order(message)[0] == asked:
            record = dict(reply.content[RECORD])  # type: ignore[arg-type]
            change(record)
            return Message(wrap(record), reply_to=message)
        return reply

    return meddle


def values(change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Change:
    """Other values in the fields of the first reply."""

    def changed(record: dict[str, Any]) -> None:
        found = with_values(record["replies"][0])
        record["replies"] = [of_values({**found, **change(found)}), *record["replies"][1:]]

    return changed


def field(name: str, value: Any) -> Change:
    return lambda record: record.update({name: value})


def header(**changes: Any) -> Change:
    """A contribution with another header, and checksums that are right."""

    def changed(found: dict[str, Any]) -> Mapping[str, Any]:
        sent = Ciphertext.from_bytes(found["contribution"].tobytes())
        other = Ciphertext(replace(sent.header, **changes), sent.chunks).to_bytes()
        return {"contribution": np.frombuffer(other, dtype=np.uint8)}

    return values(changed)


LONG = "\x1b[2J\x1b]0;owned\x07" + "A" * 5_000_000
COUNTS = {
    "2-D": values(lambda found: {"records": np.array([[60]]), "cells": found["cells"][None]}),
    "infinite": values(lambda found: {"records": np.inf}),
    "infinite cells": values(lambda found: {"cells": np.full(2, np.inf)}),
    "2**62": values(lambda found: {"records": 2**62}),
    "2**62 in a cell": values(lambda found: {"cells": found["cells"] * 0 + 2**62}),
    "negative": values(lambda found: {"records": -5}),
    "sums": field("sums", -(10**15)),
    "text for sums": field("sums", "many"),
    "long reason": lambda record: record.update(kind="refused", reason=LONG, code=""),
    "other kind": field("replies", [encode(Scores((np.zeros(3),)))]),
    "nothing": field("replies", []),
}
TRAINING = {
    "sums": field("sums", -(10**15)),
    "long reason": lambda record: record.update(replies=[b""] * len(record["replies"]), reasons=[LONG]),
    "several at once": header(additions=3),
    "another weight": header(weight=0.0),
    "no end of chunks": header(chunks=2**32 - 1, length=2**60),
}


def honest_only(folder: Path, *sections: dict[str, Any]) -> Deployment:
    """The same run, in which the hostile one answers nothing."""
    return deployment(folder, *sections, meddle=lambda node, message, answer: None if node == HOSTILE else answer())


def model(found: Deployment, k: int) -> dict[str, Any]:
    return load_file(found.holder(k) / "model.safetensors")


def clean(checkpoint: Checkpoint) -> bool:
    reasons = [absence.reason for absence in checkpoint.absent if absence.client == 1]
    assert {absence.client for absence in checkpoint.absent} <= {1}
    return bool(reasons) and all(reason.isprintable() and len(reason) <= MOST_TEXT for reason in reasons)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_that_cannot_be_are_left_out(tmp_path: Path, name: str) -> None:
    found = deployment(tmp_path, QUANTISED, SHORT, meddle=from_the_start("counts", COUNTS[name]))
    checkpoint = found.serve()
    assert clean(checkpoint)
    assert checkpoint.release_plan.records[1] == 0
    assert checkpoint.round == 2
    assert int(checkpoint.replica["sums"][0]) == 2


@pytest.mark.parametrize("claimed", [10**9, 2**31])
def test_counts_that_are_just_possible_end_nobodys_run(tmp_path: Path, claimed: int) -> None:
    claim = values(lambda found: {"cells": found["cells"] * 0 + claimed})
    checkpoint = deployment(tmp_path, QUANTISED, SHORT, meddle=from_the_start("counts", claim)).serve()
    assert clean(checkpoint)
    assert checkpoint.round == 2


@pytest.mark.parametrize("sections", [QUANTISED, ENCRYPTED], ids=["plain", "encrypted"])
@pytest.mark.parametrize("name", TRAINING)
def test_updates_that_cannot_be_are_left_out(tmp_path: Path, name: str, sections: dict[str, Any]) -> None:
    found = deployment(tmp_path, sections, SHORT, meddle=from_the_start("updates", TRAINING[name]))
    checkpoint = found.serve()
    assert clean(checkpoint)
    assert [a.round for a in checkpoint.absent if a.asked == "updates"] == [0, 1]
    for name_, values in model(found, 0).items():
        np.testing.assert_array_equal(model(found, 2)[name_], values)
        assert np.isfinite(values).all()


def test_encrypted_updates_under_another_name_or_round_are_left_out(tmp_path: Path) -> None:
    """Under another's name the sum would hold two of one client, and nobody could open it."""
    from privfair.secure_aggregation.ciphertext import Contributor

    for number, change in enumerate((header(contributors=(Contributor(0, b"n" * 16),)), header(round=9))):
        folder = tmp_path / str(number)
        folder.mkdir()
        checkpoint = deployment(folder, ENCRYPTED, SHORT, meddle=from_the_start("updates", change)).serve()
        assert clean(checkpoint)
        assert "must be of client 1 and round" in checkpoint.absent[0].reason


EVALUATIONS: dict[str, Change] = {
    "another shape": values(lambda found: {"confusion": [np.zeros((7, 3), dtype=np.int64)]}),
    "NaN": values(lambda found: {"confusion": [np.full(t.shape, np.nan) for t in found["confusion"]]}),
    "no table": field("replies", [b"\x02\x00\x00\x00\x00\x00\x00\x00{}"]),
    "2**62": values(lambda found: {"confusion": [np.full(t.shape, 2**62) for t in found["confusion"]]}),
    "-2**63": values(lambda found: {"confusion": [np.full(t.shape, -(2**63)) for t in found["confusion"]]}),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations_that_cannot_be_are_left_out(tmp_path: Path, name: str) -> None:
    private = {"privacy": {**PRIVATE, "evaluation": "laplace", "evaluation_noise": 0.5}}
    found = deployment(tmp_path, private, QUANTISED, SHORT, meddle=from_the_start("evaluation", EVALUATIONS[name]))
    checkpoint = found.serve()
    assert clean(checkpoint)
    assert checkpoint.released is not None
    assert len(checkpoint.released) == 2
    assert (found.out / "metrics.json").is_file()


MEASURES: dict[str, Change] = {
    "foreign": values(lambda found: {"values": {"secret": np.zeros(3)}}),
    "one more": values(lambda found: {"values": {**found["values"], "secret": np.zeros(3)}}),
    "another shape": values(lambda found: {"values": {n: np.zeros((1, 9)) for n in found["values"]}}),
    "NaN": values(lambda found: {"values": {n: v * np.nan for n, v in found["values"].items()}}),
    "huge": values(lambda found: {"values": {n: v * 0 + 1e300 for n, v in found["values"].items()}}),
}


@pytest.mark.parametrize("method", ["fairfed", "fedfb", "agnostic"])
@pytest.mark.parametrize("name", MEASURES)
def test_measures_that_cannot_be_are_left_out(tmp_path: Path, name: str, method: str) -> None:
    sections = {"federation": {"method": method, "rounds": 2}}
    found = deployment(tmp_path, sections, QUANTISED, meddle=from_the_start("measures", MEASURES[name]))
    checkpoint = found.serve()
    assert clean(checkpoint)
    assert all(np.isfinite(values).all() for values in model(found, 0).values())


def test_a_hello_that_cannot_be_is_turned_away(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record.update(schema="[" * 100_000, sums=-1)

    found = deployment(tmp_path, QUANTISED, SHORT, {"run": {"min_clients": 2}}, meddle=from_the_start("hello", change))
    found.grid.nodes = dict(sorted(found.grid.nodes.items(), key=lambda item: item[0] != HOSTILE))
    assert clean(found.serve())


NUMBERS = (0, -1, 5, 2**31, 2**62, 2**63 - 1, -(2**63), 0.5, -0.0, 1e308, -1e308, np.inf, -np.inf, np.nan)
TYPES = ("f2", "f4", "f8", "i1", "i8", "u8", "?")
NAMES = ("counts/x", "scores/000000", "evaluation/9", "measures/loss", "x", "a/b", "about", "000001")
VALUES = (*NUMBERS, True, "", "\x1b[0m", b"", b"\xff" * 9, [], [1, -1], ["", "a"], [b"", b"x"], [0.5], LONG)
FIELDS = ("version", "kind", "client", "schema", "sums", "replies", "reasons", "reason", "code", "run")


def hostile_arrays(random: Random, found: dict[str, Any]) -> dict[str, Any]:
    """The arrays of an honest reply with names, shapes, types and values of somebody else's choosing."""
    made: dict[str, Any] = {}
    for name, values in found.items():
        what = random.choice(["keep", "drop", "rename", "shape", "value", "value", "type", "empty"])
        with np.errstate(all="ignore"):
            if what == "shape":
                values = values[None] if random.random() < 0.5 else np.repeat(values, 2, axis=0)
            if what == "value" and values.size:
                values = values.copy()
                values.reshape(-1)[random.randrange(values.size)] = np.asarray(random.choice(NUMBERS)).astype(
                    values.dtype
                )
            if what == "type":
                values = values.astype(random.choice(TYPES))
        if what != "drop":
            made[random.choice(NAMES) if what == "rename" else name] = values[:0] if what == "empty" else values
    return made


def mutated(record: dict[str, Any], random: Random) -> None:
    """One field, the arrays of a reply, or a byte of it."""
    what = random.choice(["field", "arrays", "arrays", "bytes", "drop", "refuse"])
    replies = record.get("replies")
    if what == "refuse":
        code = random.choice(["", "unknown-run", "behind", "no-terms", "other"])
        record.update(kind="refused", reason="\x1b[2J" * random.randrange(300), code=code)
    elif what in ("arrays", "bytes") and isinstance(replies, list) and replies and replies[0]:
        content = bytearray(replies[0])
        if what == "arrays":
            made = hostile_arrays(random, load(replies[0]))
            content[:] = save({name: np.ascontiguousarray(a) for name, a in made.items()})
        else:
            content[random.randrange(len(content))] = random.randrange(256)
        record["replies"] = [bytes(content), *replies[1:]]
    elif what == "drop":
        record.pop(random.choice(FIELDS), None)
    else:
        record[random.choice(FIELDS)] = random.choice(VALUES)


CASES = {
    "counts": ({}, QUANTISED),
    "predictions": ({"privacy": PRIVATE}, QUANTISED),
    "updates": ({}, ENCRYPTED),
    "measures": ({"federation": {"method": "fedfb", "rounds": 2}}, QUANTISED),
}


def survives(asked: str, seed: int) -> None:
    """A real coordinator and two honest holders: the run ends; their models are the same, and finite.

    Memory: an honest run of this size takes well below 50 MB of Python's; 5 MB of text may be there a few times.
    """
    random = Random(seed)
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        meddle = from_the_start(asked, lambda record: mutated(record, random))
        found = deployment(Path(folder), SHORT, *CASES[asked], meddle=meddle)
        tracemalloc.start()
        checkpoint = found.serve()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100e6
        assert checkpoint.round == 2
        assert {absence.client for absence in checkpoint.absent} <= {1}
        assert all(a.reason.isprintable() and len(a.reason) <= MOST_TEXT for a in checkpoint.absent)
        for name, values in model(found, 0).items():
            np.testing.assert_array_equal(model(found, 2)[name], values)
            assert np.isfinite(values).all()


@pytest.mark.parametrize("asked", CASES)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_reply_whatever_ends_the_run_of_the_others(asked: str, seed: int) -> None:
    survives(asked, seed)


@pytest.mark.slow
@pytest.mark.parametrize("asked", CASES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_reply_of_very_many_ends_the_run_of_the_others(asked: str, seed: int) -> None:
    survives(asked, seed)


def test_the_others_end_with_what_they_would_have_without_it(tmp_path: Path) -> None:
    """Left out is left out: bit for bit the model of a run in which the hostile one is silent."""
    results = []
    for name in ("silent", "hostile"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "silent":
            silent = honest_only(folder, QUANTISED, SHORT, {"run": {"min_clients": 2}})
            silent.serve()
            results.append(model(silent, 0))
        else:
            found = deployment(folder, QUANTISED, SHORT, meddle=from_the_start("counts", COUNTS["2-D"]))
            found.serve()
            results.append(model(found, 0))
    for name, values in results[0].items():
        np.testing.assert_array_equal(results[1][name], values)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.sampled_from(VALUES)))
def test_printable_texts(value: Any) -> None:
    found = printable(value)
    assert found.isprintable()
    assert len(found) <= MOST_TEXT
    if isinstance(value, str) and value.isprintable() and len(value) <= MOST_TEXT:
        assert found == value.strip()
