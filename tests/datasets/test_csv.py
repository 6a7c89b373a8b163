from __future__ import annotations

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.datasets import Records, load

PEOPLE = """who,age,job,sex,repaid,branch
1,20,clerk,f,1,north
2,60,nurse,m,0,north
3,40,clerk,f,1,south
4,30,pilot,m,1,south
"""
SCHEMA = {"numeric": {"age": [20, 60]}, "categories": {"job": ["clerk", "nurse"], "sex": ["f", "m"]}}
ROLES = {"label": "repaid", "sensitive": "sex", "client": "branch"}


def pooled(path, **options) -> Records:
    federation = load("csv", path=path, **{**ROLES, **options})
    return Records.concatenate([federation.pooled_train(), federation.pooled_test()])


class TestDeclared:
    def test_values_are_encoded_as_declared(self, write) -> None:
        federation = load("csv", path=write(PEOPLE), schema=SCHEMA, test_fraction=0.0, **ROLES)
        assert federation.schema.features == ("age", "job=clerk", "job=nurse", "job=other")
        assert [client.name for client in federation.clients] == ["north", "south"]
        train = federation.pooled_train()
        np.testing.assert_array_equal(train.features, [[-1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [-0.5, 0, 0, 1]])
        np.testing.assert_array_equal(train.labels, [1, 0, 1, 1])
        np.testing.assert_array_equal(train.groups[:, 0], [0, 1, 0, 1])
        assert federation.schema.sensitive[0].values == ("f", "m", "other")
        assert not federation.schema.inferred
        assert 'job: 1 missing or undeclared values are "other".' in federation.notes

    def test_no_single_value_is_an_error(self, write) -> None:
        """One bad record must not stop a client: the error would tell about it."""
        bad = (
            "1,nan,,x,1,north\n2,-inf,?,,0,north\n3,1e999,clerk,f,?,north\n4,abc,clerk,f,1,\n5,9999,clerk,f,0,a\n6,,,,,"
        )
        federation = load("csv", path=write(PEOPLE.splitlines()[0] + "\n" + bad), schema=SCHEMA, **ROLES)
        records = Records.concatenate([federation.pooled_train(), federation.pooled_test()])
        assert len(records) == 3
        assert np.isfinite(records.features).all()
        assert sorted(records.groups[:, 0].tolist()) == [0, 2, 2]
        assert "2 records dropped: no client." in federation.notes
        assert "1 records dropped: no usable label." in federation.notes
        assert "age: 1 values clipped to the range 20 to 60." in federation.notes

    def test_one_bad_label_among_many_is_dropped_but_a_wrong_column_is_refused(self, write) -> None:
        rows = "".join(f"{i},30,clerk,f,{i % 2},north\n" for i in range(40))
        head = PEOPLE.splitlines()[0] + "\n"
        assert len(pooled(write(head + rows + "41,30,clerk,f,maybe,north\n"), schema=SCHEMA)) == 40
        with pytest.raises(InputError, match=r"label job must be 0 or 1; found '1 other value'\. Name the label that"):
            load("csv", path=write(head + rows), schema=SCHEMA, label="job", sensitive="sex", features=["age"])

    def test_unknown_groups_can_be_dropped(self, write) -> None:
        schema = {**SCHEMA, "categories": {"job": ["clerk"], "sex": {"values": ["f"], "unknown": "drop"}}}
        federation = load("csv", path=write(PEOPLE), schema=schema, **ROLES)
        assert federation.schema.sensitive[0].values == ("f",)
        assert "2 records dropped: undeclared value of sex." in federation.notes

    def test_a_positive_label(self, write) -> None:
        text = PEOPLE.replace(",1,", ",yes,").replace(",0,", ",no,")
        labels = pooled(write(text), schema={**SCHEMA, "positive": "no"}).labels
        assert sorted(labels.tolist()) == [0, 0, 0, 1]

    def test_a_positive_number_matches_however_it_is_written(self, write) -> None:
        labels = pooled(write(PEOPLE.replace(",0,", ",2.0,")), schema={**SCHEMA, "positive": 2}).labels
        assert sorted(labels.tolist()) == [0, 0, 0, 1]

    def test_regression_labels_are_clipped_to_their_range(self, write) -> None:
        schema = {**SCHEMA, "task": "regression", "label_range": [25, 50]}
        schema["numeric"] = {"who": [1, 4]}
        records = pooled(write(PEOPLE), schema=schema, label="age")
        assert sorted(records.labels.tolist()) == [25, 30, 40, 50]

    def test_a_schema_in_a_file(self, write, tmp_path) -> None:
        toml = 'positive = 1\n[numeric]\nage = {range = [20, 60], transform = "log"}\n[categories]\nsex = ["f", "m"]\n'
        schema = write(toml, "schema.toml")
        federation = load("csv", path=write(PEOPLE), schema=str(schema), **ROLES)
        assert federation.schema.features == ("age",)

    def test_features_must_be_declared(self, write) -> None:
        with pytest.raises(
            InputError, match=r"column who must be declared in the schema.*\[numeric\] or \[categories\]"
        ):
            load("csv", path=write(PEOPLE), schema=SCHEMA, features=["who"], **ROLES)

    @pytest.mark.parametrize(
        ("schema", "message"),
        [
            ({"numerics": {}}, "schema key numerics must be known.*Did you mean 'numeric'"),
            ({}, "schema must declare the columns"),
            (7, "schema must be the path of a TOML file or a table"),
            ({"numeric": [1]}, "schema key numeric must be a table of columns"),
            ({"numeric": {"age": [1]}}, "range of age must be two numbers"),
            ({"numeric": {"age": [2, 1]}}, "range of age must have the smaller number first"),
            ({"numeric": {"age": [0, "x"]}}, "range of age must be a number"),
            ({"numeric": {"age": {"transform": "log"}}}, "range of age must be declared"),
            ({"numeric": {"age": {"rnge": [1, 2]}}}, r"schema key age\.rnge must be known.*Did you mean 'range'"),
            ({"categories": {"sex": "f"}}, "categories of sex must be a list of values"),
            (
                {"categories": {"sex": {"values": ["f"], "unknown": "keep"}}},
                "unknown of sex must be one of other, drop",
            ),
            ({"numeric": {"a": [0, 1]}, "categories": {"a": ["x"]}}, "must be numeric or have categories, not both"),
            ({**SCHEMA, "task": "regression"}, "label_range must be declared for a regression"),
            ({**SCHEMA, "label_range": [0, 1]}, "label_range must be left out for a binary task"),
            ({**SCHEMA, "task": "regression", "positive": 1}, "positive must be left out for a regression"),
            ({"numeric": {"age": [0, 1], "sex": [0, 1]}}, "sensitive column sex must have declared categories"),
        ],
    )
    def test_a_bad_schema_is_explained(self, write, schema, message) -> None:
        with pytest.raises(InputError, match=message):
            load("csv", path=write(PEOPLE), schema=schema, **ROLES)

    def test_an_unreadable_schema_is_explained(self, write, tmp_path) -> None:
        data = write(PEOPLE)
        with pytest.raises(InputError, match="schema must be a TOML file that can be read"):
            load("csv", path=data, schema=write("age = ", "bad.toml"), **ROLES)
        with pytest.raises(InputError, match="schema must be a TOML file that can be read"):
            load("csv", path=data, schema=tmp_path / "none.toml", **ROLES)

    def test_the_task_stands_in_one_place(self, write) -> None:
        with pytest.raises(InputError, match="must stand in the schema, not beside it"):
            load("csv", path=write(PEOPLE), schema=SCHEMA, positive="1", **ROLES)


class TestInferred:
    def test_ranges_and_categories_come_from_the_records_and_the_notes_say_so(self, write) -> None:
        federation = load("csv", path=write(PEOPLE), test_fraction=0.0, **ROLES)
        assert federation.schema.inferred
        assert "for simulations only" in federation.notes[0]
        assert federation.schema.features == ("who", "age", "job=clerk", "job=nurse", "job=pilot")
        assert federation.schema.sensitive[0].values == ("f", "m")
        np.testing.assert_array_equal(federation.pooled_train().features[:, 1], [-1, 1, 0, -0.5])

    def test_missing_values(self, write) -> None:
        text = PEOPLE.replace("60,nurse", "?,NA").replace("pilot,m", "pilot,")
        federation = load("csv", path=write(text), test_fraction=0.0, **ROLES)
        assert federation.schema.sensitive[0].values == ("f", "m", "other")
        train = federation.pooled_train()
        assert train.features[1].tolist() == [np.float32(-1 / 3), 0, 0, 0, 1]
        assert train.groups[:, 0].tolist() == [0, 1, 0, 2]
        assert "age: 1 missing values set to the middle of the range." in federation.notes

    def test_a_constant_or_empty_column_is_the_middle(self, write) -> None:
        text = "a,b,y,s\n5,,0,f\n5,,1,m\n"
        federation = load("csv", path=write(text), label="y", sensitive="s", test_fraction=0.0)
        np.testing.assert_array_equal(federation.pooled_train().features, np.zeros((2, 2)))

    def test_regression(self, write) -> None:
        federation = load("csv", path=write(PEOPLE), **{**ROLES, "label": "age"}, task="regression")
        assert federation.schema.task == "regression"
        assert federation.schema.label_range == (20.0, 60.0)

    def test_constant_labels_work(self, write) -> None:
        assert pooled(write(PEOPLE.replace(",0,", ",1,"))).labels.tolist() == [1, 1, 1, 1]

    def test_true_and_false_are_labels(self, write) -> None:
        text = PEOPLE.replace(",1,", ",True,").replace(",0,", ",FALSE,")
        assert sorted(pooled(write(text)).labels.tolist()) == [0, 1, 1, 1]

    def test_labels_that_are_not_binary_are_refused(self, write) -> None:
        with pytest.raises(
            InputError,
            match=r"label repaid must be 0 or 1; found '1 other value'\. .*--set data.positive=yes.*regression",
        ):
            load("csv", path=write(PEOPLE.replace(",0,", ",2,")), **ROLES)

    def test_regression_needs_numbers(self, write) -> None:
        with pytest.raises(InputError, match=r"column job must have numbers.*found '4 of 4 values that are none'"):
            load("csv", path=write(PEOPLE), **{**ROLES, "label": "job"}, task="regression")

    def test_too_many_groups_or_categories_are_refused(self, write) -> None:
        path = write("name,a,y\n" + "".join(f"name{i},{i},{i % 2}\n" for i in range(150)))
        with pytest.raises(InputError, match="sensitive column name must have at most 20 groups; found 150"):
            load("csv", path=path, label="y", sensitive="name")
        path = write("name,y,s\n" + "".join(f"name{i},{i % 2},f\n" for i in range(150)))
        with pytest.raises(InputError, match=r"column name must have at most 100 different values.*found 150"):
            load("csv", path=path, label="y", sensitive="s")

    def test_a_sensitive_column_without_values_is_refused(self, write) -> None:
        with pytest.raises(InputError, match="sensitive column s must have values"):
            load("csv", path=write("a,y,s\n1,0,\n2,1,?\n"), label="y", sensitive="s")


class TestRoles:
    def test_without_a_client_column_there_is_one_client(self, write) -> None:
        federation = load("csv", path=write(PEOPLE), label="repaid", sensitive="sex", features=["age"])
        assert [client.name for client in federation.clients] == ["all"]

    def test_two_sensitive_attributes(self, write) -> None:
        federation = load("csv", path=write(PEOPLE), **{**ROLES, "sensitive": ["sex", "job"]}, test_fraction=0.0)
        assert [attribute.name for attribute in federation.schema.sensitive] == ["sex", "job"]
        assert federation.pooled_train().groups.tolist() == [[0, 0], [1, 1], [0, 0], [1, 2]]
        assert federation.schema.features == ("who", "age")

    def test_a_sensitive_column_is_a_feature_only_if_asked_for(self, write) -> None:
        federation = load("csv", path=write(PEOPLE), **ROLES, features=["age", "sex"])
        assert federation.schema.features == ("age", "sex=f", "sex=m")

    def test_a_test_column_decides_the_split(self, write) -> None:
        text = "a,y,s,t\n1,0,f,1\n2,1,m,0\n3,1,f,test\n4,0,m,train\n"
        federation = load("csv", path=write(text), label="y", sensitive="s", test="t", test_fraction=0.9)
        assert len(federation.pooled_test()) == 2
        assert federation.schema.features == ("a",)
        assert "Split by the column t: 2 test records." in federation.notes

    def test_records_with_one_id_stay_together(self, write) -> None:
        rows = "".join(f"p{i % 10},{i % 10},{i % 2},f\n" for i in range(200))
        federation = load("csv", path=write("p,a,y,s\n" + rows), label="y", sensitive="s", id="p", test_fraction=0.5)
        train, test = (
            set(part.features[:, 0].tolist()) for part in (federation.pooled_train(), federation.pooled_test())
        )
        assert train | test == {np.float32(2 * person / 9 - 1) for person in range(10)}
        assert not train & test

    def test_records_without_an_id_are_split_one_by_one(self, write) -> None:
        """All 200 on one side has probability 2^(-199)."""
        rows = "".join(f",{i},{i % 2},f\n" for i in range(200))
        federation = load("csv", path=write("p,a,y,s\n" + rows), label="y", sensitive="s", id="p", test_fraction=0.5)
        assert len(federation.pooled_train()) > 0
        assert len(federation.pooled_test()) > 0

    def test_conditions(self, write) -> None:
        conditions = {
            "adult": "age >= 30",
            "clerk": "job == clerk",
            "other_job": "job != 'clerk'",
            "north": "branch=='north'",
            "second": "who == 2.0",
            "paid": "repaid",
        }
        federation = load("csv", path=write(PEOPLE), **ROLES, conditions=conditions, test_fraction=0.0)
        assert federation.schema.conditions == tuple(conditions)
        assert federation.pooled_train().conditions.T.astype(int).tolist() == [
            [0, 1, 1, 1],
            [1, 0, 1, 0],
            [0, 1, 0, 1],
            [1, 1, 0, 0],
            [0, 1, 0, 0],
            [1, 0, 1, 1],
        ]

    def test_a_column_that_is_a_condition_is_no_feature_by_default(self, write) -> None:
        text = "a,c,y,s\n1,1,0,f\n2,0,1,m\n"
        options = {"path": write(text), "label": "y", "sensitive": "s"}
        assert load("csv", **options, conditions={"set": "c"}).schema.features == ("a",)
        assert load("csv", **options, conditions={"set": "c > 0"}).schema.features == ("a", "c")

    def test_a_missing_number_is_in_no_set_that_compares(self, write) -> None:
        text = "a,y,s\n?,0,f\n2,1,m\n"
        conditions = {"not_two": "a != 2", "small": "a < 3"}
        federation = load("csv", path=write(text), label="y", sensitive="s", conditions=conditions, test_fraction=0.0)
        assert federation.pooled_train().conditions.tolist() == [[False, False], [False, True]]

    @pytest.mark.parametrize(
        ("rule", "message"),
        [
            ("ages > 3", "must be about a column of the file; found 'ages'. Did you mean 'age'"),
            ("job > clerk", "condition c must compare with a number"),
            ("nonsense", "condition c must be a column or a comparison"),
            (5, "condition c must be text"),
        ],
    )
    def test_bad_conditions_are_explained(self, write, rule, message) -> None:
        with pytest.raises(InputError, match=message):
            load("csv", path=write(PEOPLE), **ROLES, conditions={"c": rule})

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"label": "repayed"}, "label must be a column of the file; found 'repayed'. Did you mean 'repaid'"),
            ({"sensitive": "gender"}, "sensitive must be a column of the file; found 'gender'"),
            ({"sensitive": ["sex", "sex"]}, "sensitive must be one word or a list of different ones"),
            ({"client": "brunch"}, "client must be a column of the file.*Did you mean 'branch'"),
            ({"client": "repaid"}, "client must be another column than the label"),
            ({"features": ["agee"]}, "features must be columns of the file; found 'agee'. Did you mean 'age'"),
            ({"features": ["repaid"]}, "features must not hold the label"),
            ({"features": []}, "features must be one word or a list"),
            ({"conditions": ["a"]}, "conditions must be a table"),
            ({"delimiter": ", "}, "delimiter must be one character"),
            ({"task": "ranking"}, "task must be one of binary, regression"),
        ],
    )
    def test_bad_roles_are_explained(self, write, options, message) -> None:
        with pytest.raises(InputError, match=message):
            load("csv", path=write(PEOPLE), **{**ROLES, **options})

    def test_nothing_left_for_features(self, write) -> None:
        with pytest.raises(InputError, match="features must be at least one column"):
            load("csv", path=write("y,s\n1,f\n"), label="y", sensitive="s")


class TestShapes:
    def test_a_group_missing_at_a_client(self, write) -> None:
        federation = load("csv", path=write(PEOPLE.replace("m,1,south", "f,1,south")), **ROLES, test_fraction=0.0)
        south = federation.clients[1].train
        assert set(south.groups[:, 0].tolist()) == {0}
        assert federation.schema.sensitive[0].values == ("f", "m")

    def test_one_record(self, write) -> None:
        federation = load("csv", path=write("a,y,s\n1,1,f\n"), label="y", sensitive="s")
        assert len(federation.pooled_train()) + len(federation.pooled_test()) == 1

    def test_no_record(self, write) -> None:
        with pytest.raises(InputError, match="dataset csv must have at least one record"):
            load(
                "csv",
                path=write("a,y,s\n"),
                label="y",
                sensitive="s",
                schema={"numeric": {"a": [0, 1]}, "categories": {"s": ["f"]}},
            )

    def test_a_thousand_clients(self, write) -> None:
        rows = "".join(f"{i % 7},{i % 2},{'fm'[i % 3 % 2]},bank {i % 1000}\n" for i in range(5000))
        federation = load("csv", path=write("a,y,s,c\n" + rows), label="y", sensitive="s", client="c")
        assert len(federation.clients) == 1000
        assert all(len(client.train) + len(client.test) == 5 for client in federation.clients)

    def test_quotes_byte_order_mark_semicolons_and_empty_lines(self, tmp_path) -> None:
        path = tmp_path / "data.csv"
        path.write_bytes('\ufeffa;y;s\r\n"1";0;"f;x"\r\n\r\n2;1;m\r\n'.encode())
        federation = load("csv", path=path, label="y", sensitive="s", delimiter=";")
        assert federation.schema.sensitive[0].values == ("f;x", "m")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "must have a first line that names the columns"),
            (b"a,y,s\n1,0,f,9\n", "line 2 must have 3 values, as the first line names; found 4"),
            ("a,y,s\n1,0,fräulein\n".encode("latin-1"), "line 2 must be text in utf-8.*Save the file as UTF-8.*cp1252"),
            (b"a,y,s\n1,0," + b"f" * 200_000 + b"\n", "line 2 must have values of fewer than 131072 characters"),
        ],
    )
    def test_an_unreadable_file_is_explained(self, tmp_path, content, message) -> None:
        path = tmp_path / "data.csv"
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            load("csv", path=path, label="y", sensitive="s")

    def test_a_missing_file_is_explained(self, tmp_path) -> None:
        with pytest.raises(InputError, match="path must be a CSV file that exists"):
            load("csv", path=tmp_path / "none.csv", label="y", sensitive="s")
