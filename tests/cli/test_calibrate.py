from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from accountant import Composed, Event, InputError, Repeated, epsilon
from privfair.cli import calibrate as command

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command.calibrate)


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def answer(*arguments: str) -> dict:
    result = run("--json", *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


ONCE = ("counts", "evaluation")


def spent(found: dict, noise: float = 1.0, rounds: tuple[int, int] = (1, 1)) -> float:
    """ε of the printed plan, computed again from the events it prints; with `rounds[0]` in place of `rounds[1]`."""
    parts = []
    for name, channel in found["channels"].items():
        event = json.loads(json.dumps(channel["event"]))
        inner = event.get("event", event)
        inner["noise_scale"] *= noise
        new, old = (1, 1) if name in ONCE else rounds
        each, rest = divmod(channel["releases"], old + found["retries"] if name not in ONCE else 1)
        assert rest == 0  # as often in a round that is repeated as in any other
        parts.append(Repeated(Event.from_json(event), each * (new + found["retries"] if name not in ONCE else 1)))
    return epsilon(Composed(tuple(parts)), found["delta"], found["method"])


@pytest.mark.parametrize(
    "choice",
    [
        (),
        ("--predictions", "laplace", "--counts", "gaussian", "--conditioning-sets", "2"),
        ("--counts", "public", "--rounds", "20"),
        ("--updates", "unused", "--score-range", "2", "--rounds", "1"),
        ("--tracker", "embedding", "--conditioning-sets", "2", "--rounds", "10"),
        ("--updates", "client_level", "--counts", "public", "--predictions", "unused", "--rounds", "10"),
        ("--updates", "client_level", "--counts", "public", "--records", "600", "--rounds", "2"),
        ("--evaluation", "laplace", "--retries", "3", "--rounds", "10"),
    ],
)
def test_the_noise_meets_the_target_from_below(choice):
    found = answer("--method", "rdp", "--epsilon", "2", *choice)
    assert 0.99 * 2 <= found["epsilon"] <= 2
    rounds = int(dict(zip(choice[::2], choice[1::2], strict=True)).get("--rounds", 100))
    assert spent(found, 1.0, (rounds, rounds)) == pytest.approx(found["epsilon"], rel=1e-9)
    for other in found["other_choices"]:
        again = spent(found, other["noise"], (other["rounds"], rounds))
        assert other["epsilon"] == pytest.approx(again, rel=1e-9)


def test_pld_needs_less_noise_than_rdp():
    plan = ("--rounds", "20", "--predictions", "unused", "--counts-noise", "30")
    by_pld, by_rdp = answer(*plan, "--method", "pld"), answer(*plan, "--method", "rdp")
    assert by_pld["channels"]["updates"]["noise_scale"] < by_rdp["channels"]["updates"]["noise_scale"]
    assert 2.97 <= by_pld["epsilon"] <= 3


def test_public_counts_are_accounted_under_replace_one():
    found = answer("--method", "rdp", "--counts", "public")
    assert found["adjacency"] == "replace-one"
    assert set(found["channels"]) == {"updates", "predictions"}
    assert found["channels"]["updates"]["sensitivity"] == 2
    assert found["channels"]["predictions"]["event"]["kind"] == "fixed-size-sampled"
    private = answer("--method", "rdp")
    assert found["channels"]["updates"]["noise_scale"] > private["channels"]["updates"]["noise_scale"]


def test_sums_of_features_are_not_sampled_and_bounded_by_one_record():
    found = answer("--method", "rdp", "--tracker", "embedding", "--rounds", "10")["channels"]
    assert set(found) == {"updates", "embeddings", "counts"}
    assert (found["embeddings"]["rate"], found["embeddings"]["releases"]) == (1.0, 11)
    assert 1 < found["embeddings"]["sensitivity"] < 1.05  # and the rounding of its features to a grid
    public = answer("--method", "rdp", "--tracker", "embedding", "--rounds", "10", "--counts", "public")["channels"]
    assert found["embeddings"]["sensitivity"] < public["embeddings"]["sensitivity"] < 2.1


@pytest.mark.parametrize(
    ("choice", "releases", "counted"),
    [
        ((), 11, 1.0),
        (("--retries", "0"), 10, 1.0),
        (("--notion", "equalized_odds"), 11, 1.0),
        (("--notion", "equal_opportunity"), 11, 2.0),
        (("--notion", "conditional_statistical_parity", "--conditioning-sets", "3"), 33, 4.0),
        (("--conditioning-sets", "2"), 22, 3.0),
        (("--attributes", "2"), 22, 2.0),
        (("--attributes", "2", "--conditioning-sets", "4"), 44, 5.0),
    ],
)
def test_sets_that_overlap_are_paid_for_one_by_one(choice, releases, counted):
    """As `privfair train` prices them: `Cells.count_overlap`, and a message of scores for each set of a record."""
    channels = answer("--method", "rdp", "--rounds", "10", "--local-steps", "1", *choice)["channels"]
    assert channels["predictions"]["releases"] == releases
    assert channels["counts"]["event"]["sensitivity"] == counted


def test_whole_clients_release_one_update_a_round():
    found = answer(
        "--method", "rdp", "--updates", "client_level", "--counts", "public", "--predictions", "unused", "--rounds", "7"
    )  # fmt: skip
    assert (found["adjacency"], found["unit"]) == ("replace-one", "client")
    updates = found["channels"]["updates"]
    assert (updates["releases"], updates["rate"]) == (8, 1.0)
    assert 2 < updates["sensitivity"] < 2.01  # and the rounding of the parameters to a grid
    assert updates["event"]["unit"] == "client"


def test_a_fixed_channel_keeps_its_noise():
    found = answer("--method", "rdp", "--updates-noise", "2.5", "--fixed", "updates", "--fixed", "counts")
    assert found["channels"]["updates"]["noise_scale"] == 2.5
    assert found["channels"]["counts"]["noise_scale"] == 10
    assert found["epsilon"] <= 3


def test_with_all_noise_fixed_it_says_what_that_costs():
    plan = ("--method", "rdp", "--rounds", "5", "--fixed", "updates", "--fixed", "predictions", "--fixed", "counts")
    found = answer(*plan, "--epsilon", "0.1")
    assert found["epsilon"] > 0.1
    assert "epsilon" not in found["configuration"]["privacy"]  # privfair train would refuse it
    assert found["epsilon"] == answer(*plan, "--epsilon", "9")["epsilon"]


def test_evaluation_and_retries_are_part_of_the_price():
    plan = ("--method", "rdp", "--rounds", "3", "--fixed", "updates", "--fixed", "predictions", "--fixed", "counts")
    bare, retried = answer(*plan, "--retries", "0"), answer(*plan, "--retries", "2")
    whole = answer(*plan, "--retries", "2", "--evaluation", "laplace", "--fixed", "evaluation")
    assert bare["epsilon"] < retried["epsilon"] < whole["epsilon"]
    assert whole["channels"]["evaluation"]["releases"] == 3


def test_the_tables_for_people(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    result = run("--method", "rdp", "--fixed", "counts")
    assert result.exit_code == 0
    for text in (
        "at δ = 1e-05",
        "updates",
        "predictions",
        "counts (fixed)",
        "ε for other choices (by RDP)",
        "50 rounds",
        "× 0.5",
    ):
        assert text in result.output
    assert max(map(len, result.output.splitlines())) <= 100


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (("--updates", "none"), "updates must have noise to meet a target; found 'none'. A channel without noise"),
        (("--predictions", "none"), "predictions must have noise"),
        (("--tracker", "embedding", "--predictions", "laplace"), "must be gaussian for the embedding tracker"),
        (("--updates", "unused", "--predictions", "unused", "--counts", "public"), "at least one channel"),
        (("--updates", "client_level"), "--counts must be public for client-level updates"),
        (("--updates", "client_level", "--counts", "public"), "--predictions must be unused for client-level updates"),
        (("--sampling-rate", "64"), "It is a probability, not a batch size."),
        (("--counts", "public", "--samples-rate", "0"), "--samples-rate must be in (0, 1]"),
        (("--samples-rate", "2"), "--samples-rate must be in (0, 1]"),
        (("--score-range", "0"), "--score-range must be above 0"),
        (("--counts-noise", "nan"), "--counts-noise must be finite"),
        (("--epsilon", "-1"), "epsilon must be above 0"),
        (
            ("--attributes", "2", "--conditioning-sets", "3"),
            "--conditioning-sets must be a multiple of --attributes, 2",
        ),
        (("--notion", "equality"), "--notion must be a known notion"),
        (("--fixed", "gradients"), "fixed must be one of updates, predictions, counts"),
        (("--counts", "public", "--fixed", "counts"), "fixed must be one of updates, predictions;"),
    ],
)
def test_bad_input(choice, message):
    result = run("--method", "rdp", *choice)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


def test_a_method_that_does_not_exist_is_wrong_usage():
    assert run("--method", "moments").exit_code == 2


@pytest.mark.parametrize("choice", [("--delta", "1e-16"), ("--epsilon", "1e9")])
def test_what_pld_cannot_resolve_points_to_rdp(choice):
    result = run("--method", "pld", "--rounds", "2", *choice)
    assert isinstance(result.exception, InputError)
    assert "--method rdp" in str(result.exception)
    assert answer("--method", "rdp", "--rounds", "2", *choice)["epsilon"] > 0
