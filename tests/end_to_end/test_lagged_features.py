"""Features that lag a round: what the penalty is, how often it is asked and paid, and that every engine agrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import privfair
from accountant.errors import InputError
from accountant.ledger.ledger import Ledger
from privfair.channels.base import Declined, require_planned
from privfair.channels.features import FeaturesChannel
from privfair.channels.updates import UpdatesChannel
from privfair.clients.client import Client
from privfair.config import Config
from privfair.federated.exchange import singles
from privfair.federated.messages import (
    Answered,
    Asked,
    EmbeddingsRequest,
    MaskingRequest,
    Missing,
    Sealed,
    TrainRequest,
)
from privfair.federated.round import begin, run_round
from privfair.privacy.forecast import beyond_plan, planned_spends
from privfair.privacy.ledger_gateway import RetriesUsedUp
from privfair.runs.assembly import Simulation, build
from privfair.runs.folder import RunDirectory
from privfair.runs.loop import RunOutcome, run
from tests.end_to_end.federations import toy
from tests.end_to_end.test_masked_training import LOGISTIC, MASKS, NOISE, config, parameters

Gone = Callable[[int, set[str], int | None], bool]  # (client, what is asked, round or number of the sum)
LAGGED = {"lagged_scores": True, "rounds": 4}
ROUNDS = 4
OPEN = {"scheme": "plain", "quantise": True}


def lagged(folder: Path, aggregation: dict[str, Any], **sections: Any) -> Config:
    sections = {"model": LOGISTIC, **sections, "federation": {**LAGGED, **sections.get("federation", {})}}
    return config(folder, aggregation, **sections)


class Watched:
    """A backend that notes what is asked for, and some of whose clients stay silent at times."""

    def __init__(self, inner: Any, gone: Gone) -> None:
        self.inner, self.gone = inner, gone
        self.exchanges: list[set[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        asked = {k: request(k) for k in clients}
        if asked:
            self.exchanges.append(set().union(*(_names(one) for one in asked.values())))
        there = [k for k in clients if not self.gone(k, _names(asked[k]), _number(asked[k]))]
        replies = dict(zip(there, self.inner.exchange(there, asked.__getitem__), strict=True))
        return [replies.get(k, Missing(k, "gone")) for k in clients]


def _names(asked: Asked) -> set[str]:
    if isinstance(asked, MaskingRequest):
        return {type(asked).__name__.removesuffix("Request")}
    return {single.channel for single in singles(asked)}


def _number(asked: Any) -> int | None:
    first = asked if isinstance(asked, MaskingRequest) else singles(asked)[0]
    return getattr(first, "round", getattr(first, "number", None))


def nobody(client: int, asked: set[str], number: int | None) -> bool:
    return False


def trained(settings: Config, gone: Gone = nobody, directory: RunDirectory | None = None) -> RunOutcome:
    made = build(settings, toy(clients=5, records=40))
    made.backend.inner = Watched(made.backend.inner, gone)
    try:
        return run(made, directory)
    finally:
        made.close()


def exchanges(outcome: RunOutcome) -> list[set[str]]:
    inner: Any = outcome.simulation.backend.inner
    found: list[set[str]] = inner.exchanges
    return found


# ---- every engine and scheme gives the same model


@pytest.mark.parametrize("private", [True, False])
def test_engines_and_schemes_agree(tmp_path: Path, private: bool) -> None:
    def silent(client: int, asked: set[str], number: int | None) -> bool:
        return client == 2 and "updates" in asked and number == 1

    ways: list[tuple[dict[str, Any], dict[str, Any]]] = [(OPEN, {}), *((masks, {}) for masks in MASKS)]
    whole = trained(lagged(tmp_path, {"scheme": "bfv"}, private=private), silent)
    for aggregation, about in ways:
        other = trained(lagged(tmp_path, aggregation, private=private, run=about), silent)
        assert np.array_equal(parameters(other), parameters(whole))
        assert {(a.client, a.round) for a in other.state.absent} == {(2, 1)}
    stacked = [
        parameters(trained(lagged(tmp_path, aggregation, private=private, run={"engine": "stacked"}), silent))
        for aggregation in (OPEN, {"scheme": "bfv"}, MASKS[1])
    ]
    assert all(np.array_equal(one, stacked[0]) for one in stacked)
    np.testing.assert_allclose(stacked[0], parameters(whole), rtol=0, atol=0 if private else 1e-6)
    ordinary = trained(lagged(tmp_path, OPEN, private=private, federation={"lagged_scores": False}), silent)
    assert not np.allclose(parameters(ordinary), parameters(whole), atol=1e-4)


SHARED: list[dict[str, Any]] = [
    {"distributed_noise": True},
    {
        **dict.fromkeys(("count_noise", "sampling_rate")),
        **{"updates": "client_level", "counts": "public", "noise_multiplier": 1.0, "prediction_noise": 4.0},
        "distributed_noise": True,
    },
]


@pytest.mark.parametrize("privacy", SHARED, ids=["gradients", "clients"])
def test_engines_agree_with_noise_in_shares(tmp_path: Path, privacy: dict[str, Any]) -> None:
    def silent(client: int, asked: set[str], number: int | None) -> bool:
        return client == 4 and "updates" in asked and number == 2

    local, stacked = (
        trained(lagged(tmp_path, MASKS[1], privacy=privacy, run={"engine": engine}), silent)
        for engine in ("local", "stacked")
    )
    embedding = local.state.release_plan.embedding
    assert embedding is not None
    assert embedding.noise.shares == 3
    # local training of whole clients rounds the last digit of an update otherwise, which may be a step of the grid
    most = 0.0 if local.state.release_plan.gradient is not None else 1e-5
    np.testing.assert_allclose(parameters(stacked), parameters(local), rtol=0, atol=most)
    steps = [np.abs(a.replica.features - b.replica.features).max() for a, b in [(stacked.simulation, local.simulation)]]
    assert max(steps) <= (2 if most else 0)


def test_local_steps_with_their_own_noise_are_in_one_vector_with_features(tmp_path: Path) -> None:
    """Updates are weighted fixed-point numbers, features whole ones: each half of the sum has its own code."""
    privacy = {"distributed_noise": True, "local_steps": 3}
    masked = trained(lagged(tmp_path, MASKS[1], privacy=privacy))
    stacked = trained(lagged(tmp_path, MASKS[1], privacy=privacy, run={"engine": "stacked"}))
    assert masked.state.release_plan.gradient is None
    assert np.array_equal(parameters(stacked), parameters(masked))


# ---- what is followed: an explicit computation


def sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-z))


class Oracle:
    """Gradient descent on the pooled records: θ' = θ − η∇[mean loss + mean penalty], by differences."""

    def __init__(self, made: Simulation) -> None:
        plan = made.spec.embedding
        assert plan is not None
        self.phi, self.strength = plan.unit.features.values, made.config.fairness.strength
        rows = [client.train for client in made.federation.clients]
        self.x, self.y = (np.concatenate([getattr(r, name) for r in rows]) for name in ("features", "labels"))
        self.group = np.concatenate([r.groups[:, 0] for r in rows])
        self.rate = made.config.federation.learning_rate

    def scores(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        return sigmoid(self.x @ theta[:4] + theta[4])

    def difference(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """μ₀ − μ₁ under these parameters."""
        phi = self.phi(self.scores(theta))
        return np.asarray(phi[self.group == 0].mean(axis=0) - phi[self.group == 1].mean(axis=0))

    def objective(self, theta: NDArray[np.float64], difference: NDArray[np.float64]) -> float:
        s = self.scores(theta)
        loss = -np.mean(self.y * np.log(s) + (1 - self.y) * np.log(1 - s))
        witness = self.phi(s) @ difference
        terms = [sign * witness[self.group == a].mean() for a, sign in ((0, 1.0), (1, -1.0))]
        return float(loss + 2 * self.strength * sum(terms))

    def step(self, theta: NDArray[np.float64], followed: NDArray[np.float64]) -> NDArray[np.float64]:
        difference, h = self.difference(followed), 1e-5
        moves = h * np.eye(theta.size)
        slopes = [
            (self.objective(theta + m, difference) - self.objective(theta - m, difference)) / (2 * h) for m in moves
        ]
        return theta - self.rate * np.array(slopes)


def trajectory(settings: Config) -> tuple[Simulation, list[Any]]:
    """The parameters before the first round and after every round."""
    made = build(settings, toy(clients=5, records=40))
    found: list[Any] = [made.replica.parameters.copy()]

    def keep(row: Any) -> None:
        found.append(made.replica.parameters.astype(np.float64))

    run(made, report=keep)
    made.close()
    return made, found


EXACT: dict[str, Any] = {
    "private": False,
    "fairness": {"lambda": 2.0, "tracker": "embedding", "features": 6},
    "run": {"dtype": "float64", "engine": "local"},
    "federation": {"batch_size": 1000, "learning_rate": 0.5},
}


def require_lag(settings: Config, tolerance: float) -> None:
    """Raise unless round t follows the features under θ_{t−1}, and the first round those under its own model."""
    made, found = trajectory(settings)
    oracle = Oracle(made)
    assert len(found) == ROUNDS + 1
    for number in range(ROUNDS):
        followed = found[max(number - 1, 0)]
        np.testing.assert_allclose(found[number + 1], oracle.step(found[number], followed), atol=tolerance)
        if number > 1:  # it could tell
            other = oracle.step(found[number], found[number])
            assert np.abs(other - oracle.step(found[number], followed)).max() > 10 * tolerance


@pytest.mark.parametrize(
    ("aggregation", "tolerance"),
    [({"scheme": "plain"}, 1e-6), (MASKS[1], 1e-4), (MASKS[0], 1e-4)],
    ids=["floats", "masked", "bfv and masks"],
)
@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_a_round_follows_the_features_of_the_model_before(
    tmp_path: Path, aggregation: dict[str, Any], tolerance: float, engine: str
) -> None:
    about = {**EXACT, "run": {"dtype": "float64", "engine": engine}}
    require_lag(lagged(tmp_path, aggregation, **about), tolerance)


def test_features_of_another_model_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = FeaturesChannel.behind_update

    def wrong(self: FeaturesChannel, request: TrainRequest, client: Client) -> Any:
        trained = client.model.parameters()  # of the end of local training, as if it had not been put back
        at = client.replica.parameters
        client.replica.parameters = trained
        try:
            return right(self, request, client)
        finally:
            client.replica.parameters = at

    monkeypatch.setattr(FeaturesChannel, "behind_update", wrong)
    with pytest.raises(AssertionError):
        require_lag(lagged(tmp_path, MASKS[1], **EXACT), 1e-4)


# ---- exchanges


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_without_masks_a_round_is_one_exchange(tmp_path: Path, engine: str) -> None:
    both = {"embeddings", "updates"}
    found = exchanges(trained(lagged(tmp_path, OPEN, run={"engine": engine})))
    assert found == [{"counts"}, {"embeddings"}, both, both, both, {"updates"}]


@pytest.mark.parametrize("masks", MASKS, ids=lambda m: m["scheme"])
def test_with_masks_a_round_is_two_exchanges_and_one_sum(tmp_path: Path, masks: dict[str, Any]) -> None:
    counts: dict[str, Any] = {"privacy": {"distributed_noise": True, "evaluation": "gaussian", "evaluation_noise": 1.0}}
    found = exchanges(trained(lagged(tmp_path, masks, federation={"rounds": 20}, **counts)))
    keys = [{"MaskKeys"}, {"MaskShares"}, {"Roster"}, {"Agree"}]
    two = [{"updates"}, {"UnmaskSum"}]
    rounds = [*two * 14, *keys, *two * 6]  # sums 2 to 15 of the first block of keys, and those after it
    asked = [*keys, {"counts"}, {"UnmaskSum"}, {"embeddings"}, {"UnmaskSum"}, *rounds]
    assert found == [*asked, {"evaluation"}, {"UnmaskSum"}]
    four = exchanges(trained(lagged(tmp_path, masks, federation={"lagged_scores": False})))
    assert four[-4:] == [{"embeddings"}, {"UnmaskSum"}, {"updates"}, {"UnmaskSum"}]


# ---- the same releases, the same price


def rows(outcome: RunOutcome) -> Counter[tuple[Any, ...]]:
    """What the ledger has of a run: client, channel, round, group and event, with how often."""
    with Ledger(outcome.simulation.config.run.ledger or "", create=False) as ledger:
        spends = [spend for _, spend in ledger.spends(run=outcome.simulation.credentials.run)]
    found: Counter[tuple[Any, ...]] = Counter()
    for s in spends:
        found[s.client, s.channel, s.round, s.group, str(s.event)] += s.count
    return found


def require_same_price(folder: Path, aggregation: dict[str, Any], **about: Any) -> None:
    """Raise unless a run whose features lag is planned, priced and paid as one whose features do not."""
    ordinary = trained(lagged(folder, aggregation, **about, federation={"lagged_scores": False}))
    late = trained(lagged(folder, aggregation, **about))
    assert rows(late) == rows(ordinary)
    assert late.state.release_plan.claim == ordinary.state.release_plan.claim
    made, plan = late.simulation, late.state.release_plan
    gateway = made.gateway
    assert gateway is not None
    forecast = planned_spends(plan, made.spec.plan, range(ROUNDS), gateway.prices)
    counted: Counter[tuple[Any, ...]] = Counter()
    for s in forecast:
        counted[s.client, s.channel, s.round, s.group, str(s.event)] += s.count
    assert counted == Counter({k: n for k, n in rows(late).items() if k[1] != "counts"})
    with Ledger(made.config.run.ledger or "", create=False) as ledger:
        spends = [spend for _, spend in ledger.spends(run=made.credentials.run)]
    assert beyond_plan(spends, plan, made.spec.plan, ROUNDS, gateway.prices, 0) == []


@pytest.mark.parametrize("aggregation", [OPEN, *MASKS], ids=lambda m: f"{m['scheme']}")
@pytest.mark.parametrize("noise", [False, True], ids=["each", "shares"])
def test_lag_changes_no_price(tmp_path: Path, aggregation: dict[str, Any], noise: bool) -> None:
    if noise and aggregation is OPEN:
        pytest.skip("noise in shares needs encryption")
    require_same_price(tmp_path, aggregation, privacy={"distributed_noise": noise})


def test_a_row_that_is_missing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UpdatesChannel, "spends", UpdatesChannel._own_spends)
    with pytest.raises(AssertionError):
        require_same_price(tmp_path, MASKS[1], privacy={"distributed_noise": True})


def test_features_that_are_released_twice_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once behind the updates, and once more in a vector of their own."""
    monkeypatch.setattr(FeaturesChannel, "planned", FeaturesChannel.asked)
    made = build(lagged(tmp_path, MASKS[1]), toy(clients=5, records=40))
    state = begin(made.server)
    assert made.gateway is not None
    forecast = planned_spends(state.release_plan, made.spec.plan, range(ROUNDS), made.gateway.prices)
    vectors = sum(s.channel == "embeddings" for s in forecast)
    made.close()
    assert vectors > ROUNDS * 5 * 2  # rounds, clients, groups


# ---- what a data holder refuses


def agreed(tmp_path: Path, **about: Any) -> tuple[Simulation, Any, TrainRequest]:
    """A run, its plan, and the request of client 0 for round 0."""
    made = build(lagged(tmp_path, MASKS[1], **about), toy(clients=5, records=40))
    state = begin(made.server)
    asked: list[TrainRequest] = []
    right = made.backend.inner.exchange

    def noted(clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        asked.extend(r for k in clients if isinstance(r := request(k), TrainRequest) and k == 0)
        return list(right(clients, request))

    inner: Any = made.backend.inner
    inner.exchange = noted
    state = run_round(run_round(state, made.server), made.server)
    made.replica.at(state.model)  # two sums are open now
    made.close()
    return made, state.release_plan, asked[-1]


def test_a_holder_releases_features_as_agreed_and_once(tmp_path: Path) -> None:
    made, plan, request = agreed(tmp_path)
    assert request.features is not None
    assert request.features.round == request.round + 1 == 2
    require_planned(request, made.spec, plan, 0)
    noise = request.features.release
    assert noise is not None
    forged: list[Any] = [
        replace(request, features=None),
        replace(request, features=replace(request.features, release=None)),
        replace(request, features=replace(request.features, release=replace(noise, multiplier=noise.multiplier / 2))),
        replace(request, features=replace(request.features, round=1)),
        replace(request, features=replace(request.features, cells=np.array([1, 0]))),
        replace(request, round=ROUNDS - 1),  # none for after the last round
        replace(request.features, model=request.model),  # once more, by itself
    ]
    for one in forged:
        with pytest.raises(Declined):
            require_planned(one, made.spec, plan, 0)
    objective: Any = request.objective
    assert objective.shared.within == 1
    require_planned(EmbeddingsRequest(0, request.model, request.features.cells, noise), made.spec, plan, 0)
    made, plan, ordinary = agreed(tmp_path, federation={"lagged_scores": False})
    inside = replace(objective, shared=replace(objective.shared, within=1, total=b""))
    for one in (replace(ordinary, features=request.features), replace(ordinary, objective=inside)):
        with pytest.raises(Declined):
            require_planned(one, made.spec, plan, 0)


def test_features_of_an_earlier_sum_are_not_opened(tmp_path: Path) -> None:
    """A server that names another sum than the last one gets no training from it."""
    made, _, request = agreed(tmp_path)
    objective: Any = request.objective
    client = made.clients[0]
    for within in (1, 3):
        earlier = replace(request, objective=replace(objective, shared=replace(objective.shared, within=within)))
        with pytest.raises(InputError, match="must be"):
            UpdatesChannel().opened(replace(earlier, model=Sealed(2, b"")), client)
    last = replace(request, objective=replace(objective, shared=replace(objective.shared, within=2)))
    shared: Any = UpdatesChannel().opened(replace(last, model=Sealed(2, b"")), client).objective
    assert np.isfinite(shared.shared.means).all()


# ---- dropouts and sums that do not open


@pytest.mark.parametrize("silent", ["updates", "UnmaskSum"])
def test_a_sum_that_does_not_open_leaves_the_next_round_without_a_penalty(tmp_path: Path, silent: str) -> None:
    number = 1 if silent == "updates" else 3  # the sum of the updates of round 1

    def gone(client: int, asked: set[str], at: int | None) -> bool:
        return client < 2 and silent in asked and at == number

    shared: list[Any] = []
    made = build(lagged(tmp_path, MASKS[1], private=False), toy(clients=5, records=40))
    watched = Watched(made.backend.inner, gone)
    right = watched.exchange

    def noted(clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        shared.extend(r.objective.shared for k in clients if isinstance(r := request(k), TrainRequest) and k == 2)  # type: ignore[union-attr]
        return right(clients, request)

    watched.exchange = noted  # type: ignore[method-assign]
    made.backend.inner = watched
    outcome = run(made)
    made.close()
    assert [s.within for s in shared] == [None, 1, None, 2]
    assert [bool(s.shares.any()) for s in shared] == [True, True, False, True]
    assert outcome.state.round == ROUNDS
    assert {(a.round, a.asked) for a in outcome.state.absent if "nothing opens" in a.reason} == {(1, "updates")}


# ---- resume


def interrupted(settings: Config, out: Path, at: str, number: int) -> str:
    """A run that ends in the middle of a round; its name."""

    def crash(client: int, asked: set[str], found: int | None) -> bool:
        if at in asked and found == number:
            raise KeyboardInterrupt
        return False

    data = toy(clients=5, records=40)
    made = build(settings, data)
    directory = RunDirectory.create(out, settings)
    directory.write_identity(made.credentials.run, made.credentials.keys, made.credentials.ledger_id)
    made.backend.inner = Watched(made.backend.inner, crash)
    with pytest.raises(KeyboardInterrupt):
        run(made, directory)
    made.close()
    return made.credentials.run


@pytest.mark.parametrize(
    ("aggregation", "engine", "at", "number"),
    [
        (OPEN, "local", "updates", 2),
        ({"scheme": "bfv"}, "stacked", "updates", 2),
        (MASKS[0], "local", "updates", 2),
        (MASKS[1], "local", "UnmaskSum", 4),
        (MASKS[1], "local", "UnmaskSum", 1),
        (MASKS[1], "stacked", "updates", 1),
    ],
)
def test_a_resumed_run_has_the_features_of_the_round_before(
    tmp_path: Path, aggregation: dict[str, Any], engine: str, at: str, number: int
) -> None:
    about = {"run": {"engine": engine}}
    whole = trained(lagged(tmp_path, aggregation, **about))
    (tmp_path / "cut").mkdir()
    settings = lagged(tmp_path / "cut", aggregation, **about)
    name = interrupted(settings, tmp_path / "out", at, number)
    resumed = privfair.train(resume=tmp_path / "out", dataset=toy(clients=5, records=40))
    assert list(resumed.rows) == whole.history
    with Ledger(settings.run.ledger or "", create=False) as ledger:
        spends = [s for _, s in ledger.spends(run=name)]
    again = {(s.channel, s.round) for s in spends if sum(_place(o) == _place(s) for o in spends) > 1}
    lost: set[tuple[str, int | None]] = set()
    if at == "UnmaskSum":  # what was masked under keys that are gone: both halves of the vector are paid again
        lost = {("embeddings", 0)} if number == 1 else {("updates", 2), ("embeddings", 3)}
    assert again == lost


def _place(spend: Any) -> tuple[Any, ...]:
    return spend.client, spend.channel, spend.round, spend.group


def test_what_is_lost_with_an_update_counts_for_its_features_too(tmp_path: Path) -> None:
    """One loss of each channel is planned: features of round 0 by themselves, then with the updates of round 1."""
    privacy = {**dict.fromkeys(NOISE), "epsilon": 8.0, "retries": 1}
    settings = lagged(tmp_path, MASKS[1], privacy=privacy)
    interrupted(settings, tmp_path / "out", "UnmaskSum", 1)

    def crash(client: int, asked: set[str], found: int | None) -> bool:
        if "UnmaskSum" in asked and found == 3:
            raise KeyboardInterrupt
        return False

    directory = RunDirectory.open(tmp_path / "out")
    identity = directory.read_identity()
    assert identity is not None
    credentials = privfair.runs.keys.Credentials(*identity)
    for error in (KeyboardInterrupt, RetriesUsedUp):
        made = build(settings, toy(clients=5, records=40), credentials=credentials)
        made.backend.inner = Watched(made.backend.inner, crash)
        with pytest.raises(error) as raised:
            run(made, directory)
        made.close()
    assert "lost 2 releases of its embeddings" in str(raised.value)


# ---- the default


@pytest.mark.parametrize(
    ("sections", "late"),
    [
        ({}, False),
        ({"aggregation": {"scheme": "masked"}}, False),
        ({"run": {"engine": "flower"}}, False),
        ({"aggregation": {"scheme": "masked"}, "run": {"engine": "flower"}}, True),
        ({"aggregation": {"masks": True}, "run": {"engine": "flower-simulation"}}, True),
        ({"aggregation": {"scheme": "masked"}, "run": {"engine": "flower"}, "federation": {"method": "fedavg"}}, False),
        ({"aggregation": {"scheme": "masked"}, "federation": {"lagged_scores": True}}, True),
        (
            {"aggregation": {"scheme": "masked"}, "run": {"engine": "flower"}, "federation": {"lagged_scores": False}},
            False,
        ),
    ],
)
def test_features_lag_with_masks_on_flower_unless_it_is_said(sections: dict[str, Any], late: bool) -> None:
    assert Config.build(sections).lagged is late
