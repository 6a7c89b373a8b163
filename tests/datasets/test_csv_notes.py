"""What the loader of CSV files says about data that are probably not what their owner means."""

from __future__ import annotations

import json

import pytest

from accountant.errors import InputError
from privfair.datasets import Federation, load

PEOPLE = """who,age,job,sex,repaid,branch,held
1,20,clerk,f,yes,north,0
2,60,nurse,m,no,north,0
3,40,clerk,f,yes,south,0
4,30,pilot,m,yes,south,0
"""
SCHEMA = {"numeric": {"age": [20, 60]}, "categories": {"job": ["clerk", "nurse"], "sex": ["f", "m"]}}
ROLES = {"label": "repaid", "sensitive": "sex", "client": "branch"}
REGRESSION = {"label": "age", "features": ["job"], "task": "regression"}


def check(path, **options) -> Federation:
    return load("csv", path=path, **{**ROLES, **options})


class TestPositive:
    def test_a_label_that_nobody_has_is_refused_where_the_schema_is_inferred(self, write) -> None:
        message = r"positive must be one of the labels in the column repaid; found 'Yes'\. The column has 2 other"
        with pytest.raises(InputError, match=message):
            check(write(PEOPLE), positive="Yes")

    def test_labels_are_counted_and_not_shown(self, write) -> None:
        with pytest.raises(InputError, match=r"found '9'\. The column has 4 other values\.$"):
            check(write(PEOPLE), label="who", positive=9)

    def test_it_is_a_note_where_the_schema_is_declared(self, write) -> None:
        federation = check(write(PEOPLE), schema={**SCHEMA, "positive": "Yes"})
        assert "repaid: no record has the positive label 'Yes'; all labels are 0." in federation.notes
        assert federation.pooled_train().labels.sum() == 0

    def test_a_label_that_somebody_has_needs_no_note(self, write) -> None:
        for options in ({"schema": {**SCHEMA, "positive": "yes"}}, {"positive": "yes"}):
            assert not any("positive" in note for note in check(write(PEOPLE), **options).notes)


class TestRegression:
    def test_clipped_labels_are_counted(self, write) -> None:
        federation = check(write(PEOPLE), **REGRESSION, label_range=[25, 35])
        assert "age: 3 labels clipped to the range 25 to 35." in federation.notes

    def test_labels_in_the_range_need_no_note(self, write) -> None:
        for label_range in ([20, 60], None):
            notes = check(write(PEOPLE), **REGRESSION, label_range=label_range).notes
            assert not any("labels clipped" in note for note in notes)


class TestEmptyParts:
    def test_one_group_only(self, write) -> None:
        expected = "sex: all records are in one group, 'f': there is nothing to compare."
        text = PEOPLE.replace(",m,", ",f,")
        assert expected in check(write(text), positive="yes").notes
        assert expected in check(write(text), schema={**SCHEMA, "positive": "yes"}).notes
        assert not any("one group" in note for note in check(write(PEOPLE), positive="yes").notes)

    def test_one_group_of_two_attributes(self, write) -> None:
        notes = check(write(PEOPLE.replace(",m,", ",f,")), sensitive=["job", "sex"], positive="yes").notes
        assert [note.partition(":")[0] for note in notes if "one group" in note] == ["sex"]

    def test_a_conditioning_set_without_records(self, write) -> None:
        conditions = {"old": "age > 90", "young": "age < 35", "kept": "held"}
        notes = check(write(PEOPLE), positive="yes", conditions=conditions).notes
        assert [note for note in notes if note.startswith("condition")] == [
            "condition old: no record is in it.",
            "condition kept: no record is in it.",
        ]

    def test_no_record_marked_for_testing(self, write) -> None:
        notes = check(write(PEOPLE), positive="yes", test="held").notes
        assert "Split by the column held: no record is marked as a test record (1, 1.0, true, yes, test)." in notes
        assert "2 of 2 clients have no test records: north, south." in notes


class TestFeatures:
    def test_columns_that_nobody_named_are_listed(self, write) -> None:
        expected = "features: who, age, job, held (all columns but label, sensitive, client)."
        assert expected in check(write(PEOPLE), positive="yes").notes

    def test_the_other_roles_are_told(self, write) -> None:
        notes = check(
            write(PEOPLE), positive="yes", client=None, test="held", id="who", conditions={"c": "job", "d": "age > 30"}
        ).notes
        assert "features: age, branch (all columns but label, sensitive, test, id, conditions)." in notes

    def test_declared_columns(self, write) -> None:
        notes = check(write(PEOPLE), schema={**SCHEMA, "positive": "yes"}).notes
        assert notes[0] == "features: age, job (all declared columns but label, sensitive, client)."

    def test_named_features_need_no_note(self, write) -> None:
        notes = check(write(PEOPLE), positive="yes", features=["age"]).notes
        assert not any(note.startswith("features") for note in notes)


class TestWrongTypes:
    @pytest.mark.parametrize("path", [3, None, ["data.csv"], b"data.csv", True])
    def test_a_path_is_text(self, path) -> None:
        with pytest.raises(InputError, match="path must be the path of a CSV file, as text"):
            check(path)

    @pytest.mark.parametrize("path", ["", "a\0b", "."])
    def test_a_path_is_a_file(self, path) -> None:
        with pytest.raises(InputError, match="path must be a CSV file that exists"):
            check(path)

    @pytest.mark.parametrize("role", ["label", "client", "test", "id", "sensitive", "features"])
    @pytest.mark.parametrize("value", [3, ["a", 3], {"a": 1}, True])
    def test_a_role_is_a_column(self, write, role, value) -> None:
        with pytest.raises(InputError, match=f"{role} must be"):
            check(write(PEOPLE), **{role: value})

    @pytest.mark.parametrize("conditions", [0, "", [], {3: "age"}])
    def test_conditions_are_a_table(self, write, conditions) -> None:
        with pytest.raises(InputError, match="conditions must"):
            check(write(PEOPLE), conditions=conditions)

    @pytest.mark.parametrize("delimiter", ["", "ab", "\n", '"', 3, None])
    def test_a_delimiter_is_one_character(self, write, delimiter) -> None:
        with pytest.raises(InputError, match="delimiter must be one character"):
            check(write(PEOPLE), delimiter=delimiter)


@pytest.mark.parametrize("options", [{"positive": "yes"}, {"schema": {**SCHEMA, "positive": "yes"}}])
def test_nothing_tells_where_the_file_is(write, tmp_path, options) -> None:
    federation = check(write(PEOPLE), **options)
    reported = json.dumps([*federation.notes, federation.name, repr(federation.schema), federation.encoder.to_json()])
    assert str(tmp_path) not in reported
    assert "data.csv" not in reported
