"""`privfair kernels` as a user runs it: the installed command, in a process of its own."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privfair.kernels import GaussianKernel, mmd2
from privfair.mechanisms import LaplaceNoise

PRIVFAIR = Path(sys.executable).parent / "privfair"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PRIVFAIR, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=600)


def test_tables_figure_and_files(tmp_path: Path) -> None:
    result = run("kernels", "--kernel", "gaussian:0.3", "--kernel", "energy", "--noise", "laplace:0.2",
                 "--repeats", "20", "--out", "there", cwd=tmp_path)  # fmt: skip
    assert result.returncode == 0, result.stderr
    for text in ("gaussian:0.3", "energy", "deconvolved laplace:0.2", "MMD²", "there/kernels.png"):
        assert text in result.stdout
    assert (tmp_path / "there" / "kernels.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "there" / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    row = next(
        r for r in rows if r["kernel"] == "gaussian:0.3" and r["form"] == "convolved" and float(r["distance"]) > 0.1
    )
    expected = GaussianKernel(0.3).convolve(LaplaceNoise(0.2)).profile(float(row["distance"]))
    assert float(row["value"]) == expected


def test_json_is_alone_on_stdout_and_equals_the_library(tmp_path: Path) -> None:
    scores = tmp_path / "scores.csv"
    rng = np.random.default_rng(0)
    x, y = rng.beta(2, 5, 30), rng.beta(3, 3, 40)
    with scores.open("w") as file:
        file.write("who,how\n" + "".join(f"a,{v!r}\n" for v in x.tolist()) + "".join(f"b,{v!r}\n" for v in y.tolist()))
    options = [
        "--kernel",
        "gaussian:0.3",
        "--noise",
        "laplace:0.2",
        "--repeats",
        "20",
        "--json",
        "--distances",
        "0,0.5",
    ]
    columns = ["--scores", str(scores), "--score-column", "how", "--group-column", "who"]
    result = run("kernels", *options, *columns, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    (only,) = answer["comparisons"]
    assert answer["groups"] == [{"name": "a", "size": 30}, {"name": "b", "size": 40}]
    assert only["mmd2"]["clean"]["value"] == pytest.approx(mmd2(x, y, GaussianKernel(0.3), biased=False), abs=1e-12)
    assert only["values"]["clean"] == pytest.approx([1.0, float(GaussianKernel(0.3).profile(0.5))])
    assert only["check"]["noisy"]["agrees"]


def test_group_names_are_taken_as_they_are(tmp_path: Path) -> None:
    rows = "".join(f"{name},{score}\n" for name in ("a[/]", "[red]ä") for score in (0.1, 0.4, 0.7, 0.9))
    (tmp_path / "odd.csv").write_text("group,score\n" + rows + ",0.5\n")
    result = run("kernels", "--scores", "odd.csv", "--repeats", "20", "--kernel", "energy", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "a[/]" in result.stdout
    assert "[red]ä" in result.stdout
    assert "1 rows without a group are left out" in result.stderr


def test_same_seed_same_answer(tmp_path: Path) -> None:
    arguments = ("kernels", "--kernel", "energy", "--noise", "laplace:0.2", "--repeats", "20", "--json", "--seed", "7")
    assert run(*arguments, cwd=tmp_path).stdout == run(*arguments, cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kernel", "gauss:0.3"], "Did you mean 'gaussian:0.3'?"),
        (["--kernel", "gaussian:-1"], "bandwidth must be above 0; found -1.0."),
        (["--noise", "laplace:-1"], "noise scale must be 0 or above; found -1.0."),
        (["--scores", "missing.csv"], "--scores must be a CSV file that exists; found 'missing.csv'."),
        (["--distances", "near"], "distances must be numbers separated by commas; found 'near'."),
        (["--scores", "three.csv"], "--group-column must hold two groups; found '3 in group'."),
        (["--scores", "words.csv"], "scores of group b must be finite"),
        (["--scores", "few.csv"], "group a must have three scores or more for a standard error; found 1."),
        (["--out", "two.csv"], "--out must be a folder that can be written"),
        (["--kernel", "matern32:1e-300"], "bandwidth must be between 1e-50 and 1e50"),
        (["--scores", "two.csv", "--score-column", "x"], "must be a column of two.csv; found 'x'. There are: group"),
    ],
)  # fmt: skip
def test_bad_input_exits_2_without_a_traceback(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "three.csv").write_text("group,score\na,0.1\nb,0.2\nc,0.3\n")
    (tmp_path / "words.csv").write_text("group,score\na,0.1\nb,high\n")
    (tmp_path / "two.csv").write_text("group,score\na,0.1\nb,0.2\n")
    (tmp_path / "few.csv").write_text("group,score\na,0.1\nb,0.2\n")
    result = run("kernels", "--repeats", "20", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "results").exists()


def test_no_torch_behind_the_command() -> None:
    """`privfair kernels` and `import accountant` start without torch."""
    code = "import sys, accountant, privfair.cli, privfair.kernels.comparison; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_version(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path).stdout.startswith("privfair 0.")


NUMBERS = re.compile(r"-?\d+\.\d+")


@pytest.mark.parametrize(
    ("kernel", "distances"),
    [
        ("gaussian:0.1+0.5*laplace:0.4", "0,0.1,0.3,1"),
        ("0.25*matern32:0.123456+0.5*rq:0.25:1.5+gaussian:0.15", "0,0.1,0.3,1"),
        ("energy", "0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1,1000"),
    ],
)
@pytest.mark.parametrize("noise", ["laplace:0.2", "gaussian:0.10625"])
def test_no_number_is_cut_on_eighty_columns(kernel, distances, noise, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    asked = ["kernels", "--kernel", kernel, "--noise", noise, "--repeats", "20", "--distances", distances]
    output = run(*asked, cwd=tmp_path).stdout
    reported = json.loads(run(*asked, "--json", cwd=tmp_path).stdout)["comparisons"][0]
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= 80
    numbers = NUMBERS.findall(output)
    for values in reported["values"].values():
        assert {f"{value:.3f}" for value in values or []} <= set(numbers)
    for estimate in filter(None, reported["mmd2"].values()):
        assert f"{estimate['value']:.4f} ± {estimate['standard_error']:.4f}" in output
    for check in filter(None, reported["check"].values()):
        assert f"{check['mean']:.4f} =" in output or f"{check['mean']:.4f} ≠" in output
    for parameter in NUMBERS.findall(f"{kernel} {noise}"):
        assert parameter in numbers
