"""Whole runs with masks: the model of the same run without them, bit for bit; with dropouts, crashes and the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.errors import InputError
from accountant.ledger.ledger import Ledger
from privfair.channels.base import PlannedRequests, registered
from privfair.config import Config
from privfair.datasets.records import Federation
from privfair.engines.local import InProcess
from privfair.federated.exchange import Absence
from privfair.federated.messages import (
    MASKING_REQUESTS,
    Answered,
    Asked,
    Bundle,
    CountsRequest,
    MaskingRequest,
    MaskKeys,
    MaskKeysRequest,
    Missing,
)
from privfair.mechanisms.entropy import SystemEntropy
from privfair.privacy.ledger_gateway import RetriesUsedUp
from privfair.runs.assembly import Simulation, build
from privfair.runs.folder import RunDirectory
from privfair.runs.loop import RunOutcome, run
from privfair.secure_aggregation import Forged
from privfair.secure_aggregation.masks import MaskingRefused
from tests.end_to_end.federations import toy

MASKS: list[dict[str, Any]] = [{"scheme": "bfv", "masks": True}, {"scheme": "masked"}]
NOISE = {"count_noise": 1.0, "prediction_noise": 4.0, "noise_multiplier": 1.0, "sampling_rate": 0.5}
LOGISTIC: dict[str, Any] = {"name": "logistic"}  # whose local training is the same to the last bit on both engines
Gone = Callable[[int, str, int | None], bool]


def config(folder: Path, aggregation: dict[str, Any], *, private: bool = True, **sections: dict[str, Any]) -> Config:
    tree: dict[str, Any] = {
        "federation": {"rounds": 3, "batch_size": 16, "learning_rate": 0.3},
        "fairness": {"lambda": 0.5, "tracker": "embedding", "features": 6},
        "model": {"name": "mlp", "hidden": [3]},
        "aggregation": aggregation,
        "run": {"ledger": f"sqlite:///{folder}/ledger.sqlite", "reproducible_noise": private},
    }
    if private:
        tree["privacy"] = {**NOISE, "min_count": 1, "distributed_noise": False}
    for name, table in sections.items():
        tree[name] = {**tree.get(name, {}), **table}
    return Config.build(tree)


class Unreliable:
    """A backend some of whose clients stay silent at times; those that the protocol of masks asks, too."""

    def __init__(self, inner: Any, gone: Gone) -> None:
        self.inner, self.gone = inner, gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        asked = {k: request(k) for k in clients}

        def silent(k: int) -> bool:
            one: Any = asked[k]
            what = type(one).__name__ if isinstance(one, MaskingRequest) else one.channel
            return self.gone(k, what, getattr(one, "round", getattr(one, "number", None)))

        there = [k for k in clients if not silent(k)]
        replies = dict(zip(there, self.inner.exchange(there, asked.__getitem__), strict=True))
        return [replies.get(k, Missing(k, "gone")) for k in clients]


def trained(
    settings: Config, gone: Gone | None = None, data: Federation | None = None, directory: RunDirectory | None = None
) -> RunOutcome:
    made = build(settings, data or toy(clients=5, records=40))
    if gone is not None:
        made.backend.inner = Unreliable(made.backend.inner, gone)
    try:
        return run(made, directory)
    finally:
        made.close()


def parameters(outcome: RunOutcome) -> Any:
    return outcome.simulation.replica.parameters


def unequal() -> Federation:
    """Five clients with 8 to 120 records."""
    data = toy(clients=5, records=160)
    sizes = (8, 20, 50, 80, 120)
    clients = [
        replace(client, train=client.train.take(np.arange(size)))
        for client, size in zip(data.clients, sizes, strict=True)
    ]
    return replace(data, clients=tuple(clients))


@pytest.mark.parametrize("masks", MASKS, ids=lambda m: m["scheme"])
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("data", [None, unequal()], ids=["equal", "unequal"])
def test_a_run_with_masks_is_the_run_without_them(
    tmp_path: Path, masks: dict[str, Any], private: bool, data: Federation | None
) -> None:
    whole = trained(config(tmp_path, {"scheme": "bfv"}, private=private), data=data)
    masked = trained(config(tmp_path, masks, private=private), data=data)
    assert np.array_equal(parameters(masked), parameters(whole))
    assert masked.history == whole.history
    assert masked.state.absent == ()
    assert masked.state.round == 3


@pytest.mark.parametrize("masks", MASKS, ids=lambda m: m["scheme"])
@pytest.mark.parametrize("tracker", [{}, {"tracker": "samples", "features": None}], ids=["embedding", "samples"])
def test_the_stacked_engine_adds_the_same_integers_in_the_open(
    tmp_path: Path, masks: dict[str, Any], tracker: dict[str, Any]
) -> None:
    for model in ({}, LOGISTIC):
        about = {"fairness": tracker, "model": model, "privacy": {"prediction_rate": 0.5} if tracker else {}}
        stacked = trained(config(tmp_path, masks, run={"engine": "stacked"}, **about))
        other = trained(config(tmp_path, {"scheme": "bfv"}, run={"engine": "stacked"}, **about))
        assert np.array_equal(parameters(stacked), parameters(other))
    assert np.array_equal(parameters(stacked), parameters(trained(config(tmp_path, masks, **about))))


@pytest.mark.parametrize("masks", MASKS, ids=lambda m: m["scheme"])
def test_noise_in_shares_is_sized_for_the_honest_clients(tmp_path: Path, masks: dict[str, Any]) -> None:
    about = {"privacy": {"distributed_noise": True}, "model": LOGISTIC}
    local = trained(config(tmp_path, masks, **about))
    embedding = local.state.release_plan.embedding
    assert embedding is not None
    assert embedding.noise.shares == 3  # of five clients, one colludes and one may be absent
    stacked = trained(config(tmp_path, masks, run={"engine": "stacked"}, **about))
    assert np.array_equal(parameters(stacked), parameters(local))


def test_whole_clients_with_masks(tmp_path: Path) -> None:
    privacy = {"updates": "client_level", "counts": "public", "noise_multiplier": 1.0, "prediction_noise": 4.0}
    tree = {"privacy": {**dict.fromkeys(("count_noise", "sampling_rate")), **privacy, "distributed_noise": True}}
    tree["model"] = LOGISTIC
    local = trained(config(tmp_path, {"scheme": "masked"}, **tree))
    stacked = trained(config(tmp_path, {"scheme": "masked"}, run={"engine": "stacked"}, **tree))
    updates = local.state.release_plan.client_updates
    assert updates is not None
    assert updates.noise.shares == 3
    # what is clipped is a whole update, so that records are not trained on one by one: engines round in last bits
    assert np.allclose(parameters(stacked), parameters(local), rtol=0, atol=1e-6)


# ---- some of the clients train in a round


@pytest.mark.parametrize("masks", MASKS, ids=lambda m: m["scheme"])
@pytest.mark.parametrize("private", [True, False])
def test_a_cohort_trains_as_without_masks(tmp_path: Path, masks: dict[str, Any], private: bool) -> None:
    """Four of five, and four must be in a sum."""
    some = {"federation": {"clients_per_round": 4}}
    whole = trained(config(tmp_path, {"scheme": "bfv"}, private=private, **some), data=unequal())
    masked = trained(config(tmp_path, masks, private=private, **some), data=unequal())
    assert np.array_equal(parameters(masked), parameters(whole))
    assert masked.state.absent == ()


COHORT: dict[str, Any] = {"federation": {"clients_per_round": 7, "learning_rate": 0.3, "rounds": 3}}
SEVEN = {"scheme": "masked", "smallest_cohort": 7, "colluders": 2}  # of ten


@pytest.mark.parametrize("tracker", ["embedding", "samples"])
def test_noise_in_shares_of_a_cohort_is_sized_for_the_honest_of_all(tmp_path: Path, tracker: str) -> None:
    """h = 8 − ⌊8·3/5⌋ = 4: all who stay away in a round, and both who collude, are taken off."""
    fairness = {"tracker": tracker} | ({} if tracker == "embedding" else {"features": None})
    rate = {} if tracker == "embedding" else {"prediction_rate": 0.5}
    about = {**COHORT, "privacy": {"distributed_noise": True, **rate}, "model": LOGISTIC, "fairness": fairness}
    data = toy(clients=10, records=40)
    local = trained(config(tmp_path, SEVEN, **about), data=data)
    gradient = local.state.release_plan.gradient
    assert gradient is not None
    assert gradient.noise.shares == 4
    assert local.state.absent == ()
    stacked = trained(config(tmp_path, SEVEN, run={"engine": "stacked"}, **about), data=data)
    assert np.array_equal(parameters(stacked), parameters(local))


def test_a_step_on_the_sum_of_a_cohort_stands_for_all(tmp_path: Path) -> None:
    """With hardly any noise and every record in the sum the mean step of many rounds is that of all clients."""
    still = {"count_noise": 0.1, "noise_multiplier": 0.1, "sampling_rate": 1.0, "prediction_noise": None}
    about: dict[str, Any] = {
        "privacy": {**still, "distributed_noise": True},
        "model": LOGISTIC,
        "fairness": {"tracker": None, "features": None},
        "run": {"engine": "stacked"},
    }
    data = toy(clients=10, records=40)
    small = {
        "method": "fedavg",
        "rounds": 60,
        "learning_rate": 1e-3,
    }  # the model hardly moves, so that all steps are about the same
    some = trained(config(tmp_path, SEVEN, federation={**small, "clients_per_round": 7}, **about), data=data)
    everybody = trained(config(tmp_path, SEVEN, federation=small, **about), data=data)
    start = build(config(tmp_path, SEVEN, federation=small, **about), data).replica.parameters
    moved, expected = parameters(some) - start, parameters(everybody) - start
    assert np.linalg.norm(moved - expected) < 0.05 * np.linalg.norm(expected)


def test_a_cohort_with_one_more_than_must_be_there_can_lose_one(tmp_path: Path) -> None:
    rounds: list[int] = []

    def gone(client: int, asked: str, number: int | None) -> bool:
        if asked == "updates" and number is not None and number not in rounds:
            rounds.append(number)  # the first who is asked in a round
            return True
        return False

    about = {"federation": {"clients_per_round": 8, "rounds": 3}, "privacy": {"distributed_noise": True}}
    found = trained(config(tmp_path, SEVEN, **about), gone, toy(clients=10, records=40))
    assert rounds == [0, 1, 2]
    assert not [a for a in found.state.absent if "nothing opens" in a.reason]
    assert len(found.state.absent) == 3


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_whole_clients_one_of_which_is_empty_all_add_their_shares_of_noise(tmp_path: Path, engine: str) -> None:
    """Three honest clients carry the claim: one without records that sent zeros would leave less noise to the rest."""
    data = unequal()
    first = data.clients[0]
    data = replace(data, clients=(replace(first, train=first.train.take(np.arange(0))), *data.clients[1:]))
    privacy = {"updates": "client_level", "counts": "public", "noise_multiplier": 1.0, "prediction_noise": 4.0}
    tree: dict[str, Any] = {
        "privacy": {**dict.fromkeys(("count_noise", "sampling_rate")), **privacy, "distributed_noise": True},
        "federation": {"lagged_scores": True},
        "model": LOGISTIC,
        "run": {"engine": engine},
    }
    outcome = trained(config(tmp_path, {"scheme": "masked"}, **tree), data=data)
    assert outcome.state.round == 3
    assert outcome.state.absent == ()
    plan, spec = outcome.state.release_plan, outcome.simulation.spec
    assert plan.records[0] == 0
    asked = PlannedRequests(spec.plan)("updates", plan, 0)
    assert set(asked) == {0, 1, 2, 3, 4}
    release, features = asked[0].release, asked[0].features
    assert release is not None
    assert features is not None
    assert (release.portion, release.noise.shares, features.release.shares) == (0.0, 3, 3)
    parameters, entropy = np.ones(release.noise.count), SystemEntropy()
    assert not release.whole(parameters).any()  # nothing of its own
    assert release.message(parameters, entropy).any()  # and its share of the noise
    with pytest.MonkeyPatch.context() as planted:  # the bug: it sends no features, and zeros stand in their place
        planted.setattr("privfair.channels.features.shares_features", lambda plan: plan.records > 0)
        with pytest.raises(InputError, match="must be asked of every client"):
            PlannedRequests(spec.plan)("updates", plan, 0)


# ---- dropouts


@pytest.mark.parametrize("masks", MASKS, ids=lambda m: m["scheme"])
def test_who_is_silent_is_left_out_as_without_masks(tmp_path: Path, masks: dict[str, Any]) -> None:
    def gone(client: int, asked: str, number: int | None) -> bool:
        return (client, asked, number) in ((1, "embeddings", 1), (2, "updates", 1))

    whole = trained(config(tmp_path, {"scheme": "bfv"}), gone)
    masked = trained(config(tmp_path, masks), gone)
    assert np.array_equal(parameters(masked), parameters(whole))
    assert masked.state.absent == whole.state.absent


def test_who_does_not_unmask_is_still_in_the_sum(tmp_path: Path) -> None:
    def gone(client: int, asked: str, number: int | None) -> bool:
        return client == 3 and asked == "UnmaskSumRequest"

    whole = trained(config(tmp_path, {"scheme": "bfv"}))
    masked = trained(config(tmp_path, MASKS[1]), gone)
    assert np.array_equal(parameters(masked), parameters(whole))
    assert {(a.client, a.asked) for a in masked.state.absent} == {(3, "masks")}


def test_a_client_that_did_not_prepare_is_left_out_of_the_block(tmp_path: Path) -> None:
    def late(client: int, asked: str, number: int | None) -> bool:
        return client == 0 and asked == "MaskKeysRequest"

    def gone(client: int, asked: str, number: int | None) -> bool:
        return client == 0 and asked in ("embeddings", "updates")

    whole = trained(config(tmp_path, {"scheme": "bfv"}), gone)
    masked = trained(config(tmp_path, MASKS[1]), late)
    assert np.array_equal(parameters(masked), parameters(whole))
    assert any("prepared masks" in a.reason for a in masked.state.absent)


@pytest.mark.parametrize("silent", ["updates", "UnmaskSumRequest"])
@pytest.mark.parametrize("masks", MASKS, ids=lambda m: m["scheme"])
def test_a_sum_that_does_not_open_is_no_step_and_the_run_goes_on(
    tmp_path: Path, masks: dict[str, Any], silent: str
) -> None:
    """Two of five are silent, and four must be there: round 1 takes no step. Its updates are paid where they left."""
    number = 1 if silent == "updates" else 4  # the sum of the updates of round 1

    def gone(client: int, asked: str, at: int | None) -> bool:
        return client < 2 and (asked, at) == (silent, number)

    models: list[Any] = []

    def keep(row: Any) -> None:
        models.append(made.replica.parameters.copy())

    made = build(config(tmp_path, masks), toy(clients=5, records=40))
    made.backend.inner = Unreliable(made.backend.inner, gone)
    outcome = run(made, report=keep)
    made.close()
    assert np.array_equal(models[0], models[1])
    assert not np.array_equal(models[1], models[2])
    unopened = [a for a in outcome.state.absent if "nothing opens" in a.reason]
    assert {(a.round, a.asked) for a in unopened} == {(1, "updates")}
    with Ledger(made.config.run.ledger or "", create=False) as ledger:
        paid = [
            spend
            for _, spend in ledger.spends(run=made.credentials.run)
            if spend.channel == "updates" and spend.round == 1
        ]
    assert len(paid) == (3 if silent == "updates" else 5)


def test_features_that_do_not_open_are_empty(tmp_path: Path) -> None:
    def gone(client: int, asked: str, at: int | None) -> bool:
        return client < 2 and asked == "embeddings"

    settings = config(tmp_path, MASKS[1], private=False)
    alone = trained(config(tmp_path, {"scheme": "bfv"}, private=False, fairness={"lambda": 0.0}))
    masked = trained(settings, gone)
    assert masked.state.round == 3
    assert np.allclose(parameters(masked), parameters(alone), atol=1e-5)
    assert {a.asked for a in masked.state.absent} == {"embeddings"}


# ---- the ledger, and what may pass beside it


class Spy:
    """A gateway that notes what passes it, and answers."""

    def __init__(self) -> None:
        self.passed: list[Any] = []

    def answer(self, requests: Sequence[tuple[int, Any]], answer: Any) -> list[Any]:
        self.passed += [request for _, request in requests]
        return [answer(k, request) for k, request in requests]


def beside_the_gateway(made: Simulation) -> set[str]:
    """Which kinds of request are answered, or reach a client, without passing the gateway."""
    spy: Any = Spy()
    engine: Any = InProcess(made.clients, made.backend.inner.check, spy)  # type: ignore[attr-defined]
    reached: list[Any] = []

    def note(client: int, request: Any) -> Any:
        reached.append(request)
        return None

    engine._answer = note
    asked: list[Any] = [object.__new__(channel.request) for channel in registered()]
    asked += [Bundle((CountsRequest(),)), Bundle((CountsRequest(), object.__new__(MaskKeysRequest)))]  # type: ignore[arg-type]
    asked += [MaskKeysRequest(0)]
    found = set()
    for one in asked:
        spy.passed.clear()
        reached.clear()
        (reply,) = engine.exchange([0], lambda k, one=one: one)
        if not spy.passed and (reached or reply is not None):
            found.add(type(one).__name__)
    return found


def test_nothing_but_the_protocol_of_masks_passes_beside_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build(config(tmp_path, MASKS[1]), toy(clients=5, records=40))
    assert beside_the_gateway(made) == {"MaskKeysRequest"}
    right = InProcess._released

    def leaky(self: InProcess, clients: Sequence[int], asked: Sequence[Any]) -> list[Any]:
        if len(asked) == 1 and isinstance(asked[0], CountsRequest):
            return [self._answer(clients[0], asked[0]) or "counts"]
        return right(self, clients, asked)

    monkeypatch.setattr(InProcess, "_released", leaky)
    assert beside_the_gateway(made) == {"MaskKeysRequest", "CountsRequest"}
    made.close()


def test_the_protocol_of_masks_needs_no_record(tmp_path: Path) -> None:
    """Its requests are answered by an object from which no record and no model can be reached."""
    made = build(config(tmp_path, MASKS[1]), toy(clients=5, records=40))
    desk: Any = made.clients[0].masking
    assert set(desk._answers) == set(MASKING_REQUESTS)
    assert isinstance(desk.answer(MaskKeysRequest(0)), MaskKeys)
    seen, todo = set[int](), [desk]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        kind = type(one)
        assert kind.__module__.split(".")[0] not in ("torch", "pandas")
        assert not kind.__module__.startswith(("privfair.clients", "privfair.datasets", "privfair.models"))
        todo += list(one.values()) if isinstance(one, dict) else list(getattr(one, "__dict__", {}).values())
    made.close()


def test_masks_have_no_row_in_the_ledger(tmp_path: Path) -> None:
    rows = []
    for aggregation in (MASKS[1], {"scheme": "bfv"}):
        run_name = trained(config(tmp_path, aggregation)).simulation.credentials.run
        with Ledger(f"sqlite:///{tmp_path}/ledger.sqlite", create=False) as ledger:
            rows.append([(s.client, s.channel, s.round, s.group, s.event) for _, s in ledger.spends(run=run_name)])
    assert rows[0] == rows[1]


# ---- resume


def interrupted(settings: Config, out: Path, at: str, number: int) -> str:
    """A run that ends in the middle of a round, where some of its messages are stored in the ledger; its name."""

    def crash(client: int, asked: str, found: int | None) -> bool:
        if (asked, found) == (at, number):
            raise KeyboardInterrupt
        return False

    data = toy(clients=5, records=40)
    made = build(settings, data)
    directory = RunDirectory.create(out, settings)
    directory.write_identity(made.credentials.run, made.credentials.keys, made.credentials.ledger_id)
    made.backend.inner = Unreliable(made.backend.inner, crash)
    with pytest.raises(KeyboardInterrupt):
        run(made, directory)
    made.close()
    return made.credentials.run


@pytest.mark.parametrize("masks", MASKS, ids=lambda m: m["scheme"])
@pytest.mark.parametrize(("at", "number"), [("updates", 1), ("UnmaskSumRequest", 4), ("embeddings", 2)])
def test_a_resumed_run_ends_with_the_same_model(tmp_path: Path, masks: dict[str, Any], at: str, number: int) -> None:
    whole = trained(config(tmp_path, {"scheme": "bfv"}))
    (tmp_path / "cut").mkdir()
    settings = config(tmp_path / "cut", masks)
    name = interrupted(settings, tmp_path / "out", at, number)
    resumed = privfair.train(resume=tmp_path / "out", dataset=toy(clients=5, records=40))
    assert list(resumed.rows) == whole.history
    with Ledger(settings.run.ledger or "", create=False) as ledger:
        again = [s for _, s in ledger.spends(run=name) if s.channel == "embeddings" and s.round == 1]
    lost = at in ("updates", "UnmaskSumRequest")  # the features of round 1 were masked under keys that are gone
    assert len(again) == (2 if lost else 1) * 5 * 2  # clients, groups


def test_what_is_made_anew_must_be_in_the_plan(tmp_path: Path) -> None:
    privacy = {**dict.fromkeys(NOISE), "epsilon": 8.0, "retries": 0}
    settings = config(tmp_path, MASKS[1], privacy=privacy)
    interrupted(settings, tmp_path / "out", "updates", 1)
    with pytest.raises(RetriesUsedUp, match="lost 1 releases of its embeddings"):
        privfair.train(resume=tmp_path / "out", dataset=toy(clients=5, records=40))


def test_a_mask_of_a_run_that_was_interrupted_is_not_made_again(tmp_path: Path) -> None:
    settings, data = config(tmp_path, MASKS[1]), toy(clients=5, records=40)
    made = build(settings, data)
    again = build(settings, data, credentials=made.credentials)
    one, two = (m.clients[0].masking._holder for m in (made, again))  # type: ignore[union-attr]
    assert one.federation.run != two.federation.run
    assert not set(one.federation.identities) & set(two.federation.identities)
    theirs = {k: m.masking._holder.keys(0) for k, m in enumerate(made.clients) if k}  # type: ignore[union-attr]
    own = two.keys(0)
    with pytest.raises(MaskingRefused, match="signature"):
        two.shares(0, {0: own, **theirs})
    made.close()
    again.close()


# ---- what is refused


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"aggregation": {"scheme": "ckks", "masks": True}}, "aggregation.scheme must be bfv or masked"),
        ({"aggregation": {"scheme": "plain", "masks": True}}, "aggregation.scheme must be bfv or masked"),
        ({"aggregation": {"scheme": "masked", "masks": False}}, "aggregation.masks must not be false"),
        ({"aggregation": {"scheme": "bfv", "colluders": 1}}, "aggregation.colluders is for masks only"),
        ({"aggregation": {"scheme": "bfv", "smallest_cohort": 3}}, "aggregation.smallest_cohort is for masks only"),
        (
            {"aggregation": {"scheme": "masked", "smallest_cohort": 5}, "privacy": {**NOISE, "smallest_cohort": 5}},
            "privacy.smallest_cohort must not be set beside aggregation.smallest_cohort",
        ),
        (
            {"aggregation": {"scheme": "masked", "smallest_cohort": 3}},
            "aggregation.smallest_cohort must be above",
        ),
        (
            {"aggregation": {"scheme": "masked"}, "federation": {"clients_per_round": 3}},
            "federation.clients_per_round must be at least aggregation.smallest_cohort, 4: a masked sum of fewer",
        ),
        (
            {
                "aggregation": {"scheme": "masked"},
                "fairness": {"tracker": "embedding"},
                "federation": {"clients_per_round": 4, "lagged_scores": True},
            },
            "federation.lagged_scores must be false where only some of the clients train",
        ),
    ],
)
def test_what_does_not_go_with_masks_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(Config.build(sections), toy(clients=5, records=40))


def test_two_clients_have_no_masks() -> None:
    with pytest.raises(InputError, match=r"clients must be at least 3 with aggregation.masks"):
        build(Config.build({"aggregation": {"scheme": "masked"}}), toy(clients=2, records=40))


def test_too_few_clients_with_records_are_found_before_the_first_round() -> None:
    data = toy(clients=5, records=40)
    empty = [replace(c, train=c.train.take(np.arange(0 if k < 2 else 30))) for k, c in enumerate(data.clients)]
    made = build(Config.build({"aggregation": {"scheme": "masked"}}), replace(data, clients=tuple(empty)))
    with pytest.raises(
        InputError, match=r"aggregation.smallest_cohort must be at most the number of clients that take"
    ):
        run(made)


def test_absences_name_no_more_than_clients(tmp_path: Path) -> None:
    def gone(client: int, asked: str, number: int | None) -> bool:
        return client < 2 and asked == "updates"

    absent = trained(config(tmp_path, MASKS[1]), gone).state.absent
    assert all(isinstance(a, Absence) and 0 <= a.client < 5 for a in absent)


@pytest.mark.parametrize("masks", MASKS, ids=lambda m: m["scheme"])
def test_a_holder_that_was_told_other_terms_is_in_no_sum_that_opens(tmp_path: Path, masks: dict[str, Any]) -> None:
    """A finer grid for one holder than for the others would leave it with its own share of the noise alone."""
    made = build(config(tmp_path, masks), toy(clients=5, records=40))
    real = made.backend.inner.agreed

    def lying(release_plan: Any) -> None:
        real(release_plan)
        real_terms = made.clients[0].masking
        assert real_terms is not None
        real_terms.agreed(b"other noise")

    made.backend.inner.agreed = lying  # type: ignore[method-assign]
    try:
        with pytest.raises(Forged):  # whoever opens the sum finds that it is none
            run(made)
    finally:
        made.close()
