"""δ of a run: below one over the number of records, declared or released, and never an error after a release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privfair
from accountant.bounds import spent
from accountant.errors import InputError
from accountant.events import Composed
from accountant.ledger.ledger import Ledger
from privfair.channels.workload import Sampling, sampling_of
from privfair.config import Config
from privfair.fairness.tracking import EmbeddingPlan
from privfair.federated.release_plan import RELEASE_PLANS, Claim, ReleasePlan
from privfair.privacy.plan_report import plan_report
from privfair.privacy.planner import EndedAfterCounts, Planner, PrivateCounts
from tests.end_to_end.federations import toy
from tests.flower.federations import PRIVATE, deployment
from tests.privacy.plans import GIVEN, RATES, planner, reported, settle
from tests.privacy.test_planning import by_pld, dp_events

LARGE = ((180_000, 120_000), (90_000, 110_000))  # 500,000 records
TARGET = {"epsilon": 3.0, "target_method": "rdp"}
TINY = 1 / (10 * 500_000)
OFTEN = {"batch_size": 5_000, "samples": 2_000}


def claim_of(release_plan: ReleasePlan) -> Claim:
    assert release_plan.claim is not None
    return release_plan.claim


def noise_of(release_plan: ReleasePlan) -> tuple[float, float]:
    """(noise of scores, noise multiplier of updates)."""
    assert release_plan.sharing is not None
    assert release_plan.updates is not None
    return release_plan.sharing.noise.scale, release_plan.updates.noise_multiplier


def in_two_phases(plan: Planner, release_plan: ReleasePlan, delta: float) -> float:
    """ε at δ of the settled noise and of the rest, one after the other, by PLD."""
    multiplier = None if release_plan.updates is None else release_plan.updates.noise_multiplier
    rest = plan.under(release_plan).rest(sampling_of(release_plan), release_plan.fairness_noise, multiplier)
    share = 0.1 * delta if plan.config.counts == "gaussian" else 0.0
    first = Composed(tuple(channel.total for channel in plan.fixed()))
    later = Composed(tuple(channel.total for channel in rest))
    price = spent(first, share, "pld" if share else "rdp").epsilon
    return price + spent(later, delta - share, "pld").epsilon


@pytest.mark.parametrize("privacy", [{}, RATES, {"counts": "gaussian"}, {**RATES, "counts": "gaussian"}])
@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_half_a_million_records_are_planned_for_a_smaller_delta(privacy: dict[str, Any], method: str) -> None:
    plan = planner({"epsilon": 3.0, "target_method": method, **privacy}, **OFTEN)
    release_plan = settle(plan, LARGE)
    claim = claim_of(release_plan)
    assert claim.delta == TINY
    assert claim.two_phases  # the noise depends on counts: they do not compose with the rest at once
    assert in_two_phases(plan, release_plan, TINY) <= 3.0 * (1 + 1e-6)
    assert (
        in_two_phases(plan, release_plan, TINY / 1e4) > 3.0
    )  # and at no far smaller δ: the noise is calibrated for this one
    declared = settle(planner({"epsilon": 3.0, "target_method": method, "records": 99_999, **privacy}, **OFTEN), LARGE)
    assert claim_of(declared).delta == 1e-5  # the owner has said how many there are: δ stays
    assert all(more > less for more, less in zip(noise_of(release_plan), noise_of(declared), strict=True))


def test_records_that_are_sampled_rarely_leave_something_to_updates() -> None:
    """Four messages of 40 scores of half a million: by RDP they cost three times what they do by PLD.

    RDP bounds the plan, too, so that scores which are calibrated by PLD alone would leave nothing to updates.
    """
    plan = planner({"epsilon": 3.0}, batch_size=5_000)
    release_plan = settle(plan, LARGE)
    assert in_two_phases(plan, release_plan, TINY) <= 3.0 * (1 + 1e-6)
    assert claim_of(release_plan).rdp == pytest.approx(0.15 + 1.2 * 2.85)


def test_public_counts_are_planned_at_once_for_the_smaller_delta() -> None:
    release_plan = settle(planner({"epsilon": 3.0, "counts": "public"}, **OFTEN), LARGE)
    assert claim_of(release_plan).delta == TINY
    assert not claim_of(release_plan).two_phases
    assert 0.98 * 3.0 <= claim_of(release_plan).pld <= 3.0


def test_given_noise_states_its_epsilon_at_the_smaller_delta() -> None:
    """Nothing is calibrated: the same mechanism, read off at another δ."""
    few, many = (settle(planner({**GIVEN, **RATES}), cells) for cells in (((120, 80), (60, 140)), LARGE))
    assert noise_of(few) == noise_of(many)
    events = dp_events(many, rounds=3, retries=1, rate=0.5)
    assert claim_of(many).pld == pytest.approx(by_pld(events, TINY), abs=1e-3)
    assert claim_of(many).pld > claim_of(few).pld
    assert not claim_of(many).two_phases


@pytest.mark.parametrize("rates", [RATES, {"sampling_rate": 0.25}], ids=["one phase", "two phases"])
def test_given_noise_that_leaves_nothing_at_the_smaller_delta_is_stated_and_no_error(rates: dict[str, float]) -> None:
    """Updates cost nearly all of ε at δ = 1e-5, and more than all of it at δ′."""
    given_noise = {"count_noise": 20.0, "noise_multiplier": 2.0, **rates}
    updates = planner({**given_noise, "epsilon": 50.0}, shares_scores=False)
    (channel,) = updates.rest(Sampling(0.25, 4, None, None), None, 2.0)
    epsilon = 1.1 * (spent(channel.total, 1e-5, "pld").epsilon + 1 / 20)
    plan = planner({**given_noise, "epsilon": epsilon})
    release_plan = settle(plan, LARGE)
    claim = claim_of(release_plan)
    assert claim.delta == TINY
    assert claim.pld > epsilon
    rest = plan.rest(sampling_of(release_plan), release_plan.fairness_noise, 2.0)
    everything = Composed(tuple(channel.total for channel in [*plan.fixed(), *rest]))
    assert spent(everything, 1e-5, "pld").epsilon <= epsilon  # the target itself is met at the configured δ
    again = PrivateCounts(plan).settle(reported(LARGE), (release_plan.fairness_noise, 2.0))
    assert claim_of(again).pld == pytest.approx(claim.pld, rel=1e-9)  # a data holder comes to the same terms
    notes = plan_report(
        Config.build({"privacy": {**given_noise, "epsilon": epsilon}}), release_plan, plan, budgeted=False
    )
    assert any("leaves nothing to calibrate at the smaller δ" in note for note in notes["notes"])


def test_a_holder_insists_on_the_smaller_delta() -> None:
    """Noise of the configured δ, which is less, does not pass where all of it can be calibrated."""
    plan = planner({"epsilon": 3.0, **RATES})
    few, many = settle(plan), settle(plan, LARGE)
    multiplier = many.updates.noise_multiplier if many.updates else None
    again = PrivateCounts(plan).settle(reported(LARGE), (many.fairness_noise, multiplier))
    assert RELEASE_PLANS.to_text(again) == RELEASE_PLANS.to_text(many)
    weaker = few.updates.noise_multiplier if few.updates else None
    with pytest.raises(InputError, match="must be at least what the given noise costs"):
        PrivateCounts(plan).settle(reported(LARGE), (few.fairness_noise, weaker))


@settings(max_examples=25, deadline=None)
@given(
    cells=st.lists(st.tuples(st.integers(100, 10**7), st.integers(100, 10**7)), min_size=1, max_size=4),
    delta=st.sampled_from([1e-9, 1e-5, 1e-3, 0.1, 0.9]),
    privacy=st.sampled_from([TARGET, {**TARGET, **RATES}, {**TARGET, "counts": "public"}, {**GIVEN, **RATES}]),
)
def test_no_counts_are_an_error_for_delta(cells: list[tuple[int, int]], delta: float, privacy: dict[str, Any]) -> None:
    plan = planner({**privacy, "delta": delta})
    plan.require_plannable()
    records = sum(map(sum, cells))
    claim = claim_of(PrivateCounts(plan).settle(reported(cells)))
    assert claim.delta == (delta if delta * records < 1 else 1 / (10 * records))
    assert claim.delta * records < 1
    if "epsilon" in privacy:
        assert claim.rdp <= 3.0 * (1 + 1e-9)


# ---- what is refused is refused before the first release


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "δ of declared records": (
        {"epsilon": 3.0, "records": 500_000},
        r"privacy.delta must be below 1/500000, one over the declared number of records \(privacy.records\); found "
        r"1e-05\. A tenth of that is a good choice: 2e-07\.",
    ),
    "counts that leave less than scores are to cost": (
        {"epsilon": 3.0, "count_noise": 0.6, "evaluation": "none"},
        r"privacy.epsilon must leave something to updates, after 1.5 for predictions and 1.667 for counts and eval",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_known_before_is_refused_before(tmp_path: Path, name: str) -> None:
    privacy, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        planner(privacy).require_plannable()
    with pytest.raises(InputError, match=message):
        train(tmp_path, privacy=privacy)
    assert not (tmp_path / "l.sqlite").exists()


def train(tmp_path: Path, records: int = 200, **sections: Any) -> privfair.Result:
    run = {"ledger": f"sqlite:///{tmp_path}/l.sqlite"}
    given_sections = {
        "fairness": {"tracker": "samples"},
        "federation": {"rounds": 1, "batch_size": 30},
        "aggregation": {"scheme": "plain"},
        **sections,
    }
    return privfair.train(given_sections, dataset=toy(records=records), run=run)


def test_a_run_that_no_client_is_large_enough_for_says_what_it_spent(tmp_path: Path) -> None:
    words = (
        r"^The run ended after its counts, and nothing else was released\. They cost every client at most ε = 0\.15, "
        r"which is in the ledger\. data must have a client with a released count of at least 100000"
    )
    with pytest.raises(EndedAfterCounts, match=words):
        train(tmp_path, privacy={"epsilon": 3.0, "min_count": 100_000})
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        rows = [s for run in ledger.runs("toy") for _, s in ledger.spends(run=run)]
    assert {row.channel for row in rows} == {"counts"}
    assert spent(rows[0].event, 0.0).epsilon == pytest.approx(0.15)


def test_public_counts_have_cost_nothing() -> None:
    """The same situation without noise on counts is bad input, and not a run that has spent something."""
    public = PrivateCounts(planner({"epsilon": 3.0, "counts": "public"}))
    error = InputError("data", "must have training records", 0)
    assert public.ended(error) is error


def test_many_records_get_larger_minibatches_and_no_error() -> None:
    """A million records at a client and minibatches of 50 would be 20,000 steps a round; there is room for 10,000."""
    release_plan = settle(planner({"epsilon": 3.0, "target_method": "rdp", "delta": 1e-9}), [(600_000, 400_000)])
    assert release_plan.updates is not None
    assert release_plan.updates.steps == 10_000
    assert release_plan.updates.sampling_rate == pytest.approx(1e-4)


def test_sums_without_room_end_the_run_after_its_counts(tmp_path: Path) -> None:
    sections = {"privacy": {"epsilon": 30.0}, "fairness": {"tracker": "embedding"}, "aggregation": {"scheme": "bfv"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddingPlan, "room_beside", lambda self, noise: 3)
        with pytest.raises(EndedAfterCounts, match="every client must have at most 3 records in a group"):
            train(tmp_path, **sections)


# ---- whole runs


def test_a_run_states_its_delta_everywhere(tmp_path: Path) -> None:
    plans: list[dict[str, Any]] = []
    run = {"ledger": f"sqlite:///{tmp_path}/l.sqlite"}
    tree = {
        "federation": {"rounds": 1, "batch_size": 30},
        "aggregation": {"scheme": "plain"},
        "privacy": {"epsilon": 3.0, "delta": 0.01},
    }
    result = privfair.train(tree, dataset=toy(records=200), run=run, planned=plans.append)
    delta = result.privacy["delta"]
    assert 1 / 10_000 < delta < 1 / 2_000  # a tenth of one over about 450 released records
    assert result.privacy["plan"] == "two phases"
    assert result.privacy["epsilon"]["pld"] == pytest.approx(3.0)
    assert any(f"δ = {delta:.3g}, one over ten times the released number" in note for note in plans[0]["notes"])
    assert any("add up to" in line for line in result.privacy["assumptions"])


def test_data_holders_come_to_the_same_delta(tmp_path: Path) -> None:
    privacy = {"epsilon": 8.0, "delta": 0.05, "sampling_rate": 0.5, "prediction_rate": 0.5, "min_count": 1}
    found = deployment(tmp_path, {"privacy": privacy, "aggregation": {"scheme": "plain", "quantise": True}})
    checkpoint = found.serve()
    assert checkpoint.absent == ()
    delta = claim_of(checkpoint.release_plan).delta
    assert delta == 1 / (10 * int(checkpoint.release_plan.records.sum()))
    for k in range(3):
        stated = json.loads((found.holder(k) / "privacy.json").read_text())
        assert (stated["delta"], stated["private"]) == (delta, True)
        assert stated["epsilon"]["pld"] == pytest.approx(8.0)


def test_who_comes_late_does_not_change_delta(tmp_path: Path) -> None:
    """A latecomer would make the released number of records larger, and δ smaller: it stays out, and nothing fails."""
    from privfair.deployment.flower.link import unwrap
    from privfair.federated.exchange import decode_request, singles
    from privfair.federated.messages import CountsRequest

    late: list[int] = []

    def meddle(node: int, message: Any, answer: Any) -> Any:
        envelope = unwrap(message)
        if node == 102 and envelope["kind"] == "order" and not late:  # type: ignore[index]
            asked = decode_request(envelope["request"][0])  # type: ignore[index, arg-type]
            if isinstance(singles(asked)[0], CountsRequest):
                late.append(1)
                return None
        return answer()

    privacy = {**PRIVATE, "delta": 1 / 110, "retries": 0}  # two holders have fewer records, three have more
    found = deployment(
        tmp_path, {"privacy": privacy, "aggregation": {"scheme": "plain", "quantise": True}}, meddle=meddle
    )
    checkpoint = found.serve()
    assert late
    assert checkpoint.uncounted == ()
    assert checkpoint.release_plan.records[2] == 0
    assert claim_of(checkpoint.release_plan).delta == 1 / 110
    assert {row.channel for row in found.spends(2)} == {"counts"}


def test_the_declared_number_of_records_may_stand_with_the_data() -> None:
    own = {"name": "csv", "path": "people.csv", "records": 500_000}
    assert Config.build({"data": own}).privacy.records == 500_000
    assert "records" not in Config.build({"data": own}).data.options
    with pytest.raises(InputError, match=r"data.records must be privacy.records, 400000; found 500000"):
        Config.build({"data": own, "privacy": {"records": 400_000}})
    assert Config.build({"data": {"name": "synthetic", "records": 120}}).data.options["records"] == 120
