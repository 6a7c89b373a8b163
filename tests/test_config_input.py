"""Configurations that are not what they should be: a clear error and exit code 2, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from accountant.errors import InputError
from privfair.cli import app
from privfair.config import Config
from privfair.fairness.notions import STATISTICAL_PARITY, known_notion

PROGRAM = Path(sys.executable).with_name("privfair")
SECTIONS = {name: list(field.annotation.model_fields) for name, field in Config.model_fields.items()}  # type: ignore[union-attr]
DEEP = "[" * 2000 + "]" * 2000

BAD_FILES = {
    "a nested table": b"[fairness.lambda]\nx = 1\n",
    "a list of tables": b"[[fairness]]\nlambda = 1\n",
    "a scalar for a section": b"fairness = 3\n",
    "a wrong type": b'[federation]\nrounds = "ten"\n',
    "a date": b"[federation]\nrounds = 2020-01-01\n",
    "a huge integer": b"[federation]\nrounds = " + b"9" * 400 + b"\n",
    "an integer that Python does not read": b"[federation]\nrounds = " + b"9" * 5000 + b"\n",
    "a key twice": b"[federation]\nrounds = 1\nrounds = 2\n",
    "a section twice": b"[federation]\n[federation]\n",
    "bytes that are not UTF-8": b"[data]\nname = 'f\xe9d'\n",
    "UTF-16": "[data]\n".encode("utf-16"),
    "no TOML": b"rounds: 3\n",
    "deep nesting": f"[data]\nx = {DEEP}\n".encode(),
    "not a number": b"[fairness]\nlambda = nan\n",
    "an unknown section": b"[frobnicate]\nx = 1\n",
    "an unknown key": b"[fairness]\nlambada = 1\n",
    "a table for a name": b"[data.name]\nx = 1\n",
    "a table for a path": b'[data]\nname = "csv"\nlabel = "y"\nsensitive = "s"\n[data.path]\nx = 1\n',
    "a list for a label": b'[data]\nname = "csv"\npath = "config.toml"\nlabel = [1]\nsensitive = "s"\n',
    "NUL": b"[data]\nname = 'a\0b'\n",
}


@pytest.mark.parametrize("content", [pytest.param(content, id=name) for name, content in BAD_FILES.items()])
@pytest.mark.parametrize("command", [["train"], ["sweep", "--lambdas", "0", "--seeds", "1", "--workers", "1"]])
def test_a_bad_file_is_an_input_error(tmp_path: Path, monkeypatch, content: bytes, command: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(InputError) as error:
        CliRunner().invoke(app, [*command, "config.toml", "--out", "run"], catch_exceptions=False)
    assert len(str(error.value)) < 1500
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("config", [".", "none.toml", "config.toml", "x" * 5000])
def test_the_program_exits_with_2_and_without_a_traceback(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.toml").write_bytes(BAD_FILES["a nested table"])
    command = [str(PROGRAM), "train", config]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbf[federation]\nrounds = 3\n")
    assert Config.read(tmp_path / "config.toml").federation.rounds == 3


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=600)
@given(st.sampled_from([(s, k) for s, keys in SECTIONS.items() for k in keys]), VALUE)
def test_any_value_of_any_key_is_taken_or_explained(place: tuple[str, str], value: Any) -> None:
    section, key = place
    reported = ""
    try:
        Config.build({section: {key: value}})
    except InputError as error:
        reported = str(error)
    assert len(reported) < 3000


@settings(max_examples=300)
@given(st.text(max_size=30), VALUE)
def test_any_override_is_taken_or_explained(text: str, value: Any) -> None:
    for override in (text, f"data.x={text}", f"fairness.lambda={text}", f"{text}=1", f"run.{text}={value}"):
        reported = ""
        try:
            Config.build({}, [override])
        except InputError as error:
            reported = str(error)
        assert len(reported) < 3000


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(["path", "label", "sensitive", "client", "features", "test", "id",
       "conditions", "schema", "task", "positive", "label_range", "delimiter", "quote", "encoding", "decimal",
       "thousands", "unknown"]), VALUE, max_size=6))  # fmt: skip
def test_any_options_of_a_csv_file_are_taken_or_explained(options: dict[str, Any]) -> None:
    from privfair.datasets import load

    path = str(Path(__file__).with_name("conftest.py"))
    reported = ""
    try:
        load("csv", **{"path": path, "label": "y", "sensitive": "s", **options})
    except InputError as error:
        reported = str(error)
    assert reported


class TestAlias:
    def test_demographic_parity_is_statistical_parity(self) -> None:
        for config in (
            Config.build({"fairness": {"notion": "demographic_parity"}}),
            Config.build({}, ["fairness.notion=demographic_parity"]),
            Config.build({"fairness": {"notion": "demographic_parity", "lambda": 1.0}}),
        ):
            assert config.fairness.notion == "statistical_parity"
            assert config.as_tables()["fairness"]["notion"] == "statistical_parity"
        assert known_notion("demographic_parity") is STATISTICAL_PARITY

    def test_runs_are_the_same_and_named_alike(self) -> None:
        import privfair

        tree = {"data": {"name": "synthetic", "clients": 2, "records": 60}, "federation": {"rounds": 2}}
        one, other = (
            privfair.train({**tree, "fairness": {"notion": notion}}).metrics
            for notion in ("statistical_parity", "demographic_parity")
        )
        assert one["unfairness"] == other["unfairness"]
        assert one["notion"] == other["notion"]

    def test_the_command_line_takes_it(self) -> None:
        words = ["--rounds", "3", "--epsilon", "3", "--delta", "1e-5", "--sampling-rate", "0.1", "--json"]
        reported = [
            CliRunner().invoke(app, ["calibrate", *words, "--notion", notion], catch_exceptions=False).output
            for notion in ("statistical_parity", "demographic_parity")
        ]
        assert reported[0] == reported[1]
        assert "epsilon" in reported[0]
