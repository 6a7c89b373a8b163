"""Updates: how a client's training changed the model. Private by DP-SGD, or whole updates are clipped and get noise.

DP-SGD protects single records: every step clips each record's gradient and adds noise to their sum (see
`clients.dp_sgd`). Where whole clients are protected, training is exact and the whole change is clipped once (see
`mechanisms.vector_release`).
"""

from __future__ import annotations

import math
import secrets
from dataclasses import asdict, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from accountant import calibration
from accountant.errors import InputError
from accountant.events import Adjacency, Event, Gaussian, NotPrivate, PoissonSampled, Unit
from accountant.spending import TRAIN, Spend
from privfair.channels.base import (
    EXACT,
    LARGEST,
    NO_MODEL,
    AgreedRun,
    Channel,
    Declined,
    Description,
    Phase,
    PriceList,
    ReplyCheck,
    by_several,
    close,
    equal,
    require,
)
from privfair.channels.features import FeaturesChannel
from privfair.channels.workload import PrivateRun, Sampling, Workload
from privfair.clients.client import Client
from privfair.clients.training import Trained, sum_gradients, train_locally, train_privately
from privfair.config import Config
from privfair.fairness.tracking import SealedFeatures, SharedScores
from privfair.federated.algorithms.mmd_fedavg import EmbeddingTracking, MmdFedAvg, steering, takes_part
from privfair.federated.messages import (
    Objective,
    OwnPenalty,
    Parameters,
    PrivateWork,
    Reweighted,
    Task,
    Tracked,
    TrainRequest,
    Update,
)
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Schedule
from privfair.mechanisms.entropy import Entropy, stream
from privfair.mechanisms.vector_release import LEAST_NOISE, SMOOTHING, VectorNoise
from privfair.models import torch_seeded
from privfair.util import FloatArray

UPDATES = TrainRequest.channel
OBJECTIVES: dict[str, type] = {
    "mmd_fedavg": Tracked,
    "fedavg": Task,
    "agnostic": Task,
    "local_fairness": OwnPenalty,
    "fairfed": OwnPenalty,
    "fedfb": Reweighted,
}
NOISE = ("steps", "sampling_rate", "noise_multiplier", "max_grad_norm")  # what privacy rests on: to the last bit


class UpdatesChannel(Channel[TrainRequest, Update]):
    """The weighted change of the model's parameters, encoded for the sum over all clients."""

    name: ClassVar[str] = UPDATES
    side: ClassVar[str] = TRAIN
    request, reply = TrainRequest, Update
    phase: ClassVar[Phase] = "training"

    def planned(
        self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int
    ) -> TrainRequest | None:
        """The training of a client that is in the round's cohort and has records; the server fills in the objective.

        Where the algorithm has weights of its own, or wants a snapshot, the server fills in those as well.
        """
        clients = len(release_plan.records)
        if number is None or not schedule.trains(client, number, clients) or not release_plan.trains[client]:
            return None
        participation = schedule.cohort_size(clients) / clients
        features, joined = None, number < schedule.rounds_with_features
        if joined:
            features = FeaturesChannel().asked(release_plan, schedule, number + 1, client)
        sharing = release_plan.embedding is not None and release_plan.embedding.noise.shares > 1
        if joined and sharing and release_plan.cohort is not None and features is None:
            rule = "must be asked of every client, since others count on its share of their noise"
            raise InputError("features behind the update", rule, f"none of client {client}")
        return TrainRequest(
            round=number,
            model=NO_MODEL,
            objective=Task(),
            work=release_plan.work(client, schedule.work(number)),
            weight=float(release_plan.weights[client] / participation),
            participation=participation,
            correct=schedule.correct,
            release=release_plan.release(client),
            gradient=release_plan.gradient,
            features=features,
        )

    # ---- at the client

    def opened(self, request: TrainRequest, client: Client) -> TrainRequest:
        """The request with the shared features opened, where it has sealed ones."""
        objective = request.objective
        if not isinstance(objective, Tracked) or not isinstance(objective.shared, SealedFeatures):
            return request
        if objective.shared.within is not None:
            client.replica.at(request.model)  # opens the sum that has them
        shared = client.features.open(objective.shared, request.round, client.replica)
        return replace(request, objective=replace(objective, shared=shared))

    def respond(self, request: TrainRequest, client: Client, entropy: Entropy) -> Update:
        """Train from the request's model, and send what changed."""
        request = self.opened(request, client)
        at = client.replica.at(request.model)
        shift = self.shift(request, client, at)
        return self.message(request, client, at, shift, _trained(request, client, at.values, shift, entropy), entropy)

    def shift(self, request: TrainRequest, client: Client, at: Parameters) -> FloatArray | None:
        """SCAFFOLD's c − c_k."""
        if not request.correct or at.control is None:
            return None
        if client.control is None:
            client.control = np.zeros_like(at.values)
        shift: FloatArray = at.control - client.control
        return shift

    def message(
        self,
        request: TrainRequest,
        client: Client,
        at: Parameters,
        shift: FloatArray | None,
        trained: Trained,
        entropy: Entropy,
    ) -> Update:
        """What is sent after local training, whoever computed it.

        With SCAFFOLD's new control variate (option II) where asked for, which the client keeps. Gradients that are
        summed in whole numbers go down: their sum's negative leaves, and whoever opens the sum knows the step size.
        """
        start, replica, features = at.values, client.replica, FeaturesChannel().behind_update(request, client)
        noisy: NDArray[np.int64] | None = None
        if request.gradient is not None:
            if trained.gradients is None:
                raise InputError("training", "must have summed gradients in whole numbers", "another training")
            noisy = request.gradient.message(-trained.gradients, entropy)
        elif request.release is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # must not raise: an error would reveal something
                noisy = request.release.message(trained.parameters - start, entropy)
        if noisy is not None:
            about = {"client": client.index, "round_number": request.round}
            return Update(replica.noisy_contribution(noisy, **about, features=features))
        delta = trained.parameters - start
        control = None
        if shift is not None and client.control is not None and at.control is not None:
            # c_k⁺ = c_k − c + (θᵗ − θ_k)/(steps·η)
            rate = np.asarray(max(trained.steps, 1) * request.work.learning_rate, dtype=delta.dtype)
            change = -at.control - delta / rate if trained.steps else np.zeros_like(delta)
            client.control = client.control + change
            control = np.asarray(request.participation * change, dtype=delta.dtype)
        snapshot = None
        if request.snapshot_at is not None:
            snapshot = delta if trained.snapshot is None else trained.snapshot - start
        if not isinstance(request.work, PrivateWork) and not np.all(np.isfinite(delta)):
            name = f"update of client {client.name!r}"
            raise InputError(name, "must be finite", "nan or inf", "Try a smaller learning rate.")
        sent = replica.contribution(
            delta,
            control,
            snapshot,
            request.weight,
            client=client.index,
            round_number=request.round,
            features=features,
        )
        return Update(sent)

    # ---- the price

    def spends(self, request: TrainRequest, holder: PriceList) -> tuple[Spend, ...]:
        """One row: of every step of DP-SGD, or of the whole update; and those of the features that leave with it."""
        beside = () if request.features is None else FeaturesChannel().spends(request.features, holder)
        return (*self._own_spends(request, holder), *beside)

    def _own_spends(self, request: TrainRequest, holder: PriceList) -> tuple[Spend, ...]:
        work, release = request.work, request.release
        if release is not None:  # of the largest weight, whatever its own: nobody pays more
            event = holder.in_shares(release.noise, lambda noise: noise.event(holder.adjacency, Unit.CLIENT))
            return (holder.row(request, event),)
        if not isinstance(work, PrivateWork):
            return (holder.row(request, NotPrivate()),)
        if request.gradient is not None:
            rate = work.sampling_rate
            event = holder.in_shares(request.gradient.noise, lambda noise: sum_event(rate, noise, holder.adjacency))
            return (holder.row(request, event),)
        event = step_event(work.sampling_rate, work.noise_multiplier, holder.adjacency)
        return (holder.row(request, event, count=work.steps),)

    def worst_case(
        self, run: PrivateRun, sampling: Sampling | None = None, noise: Any = None, *, fixed: bool = True
    ) -> calibration.Channel | None:
        """The updates of all rounds, for a client that trains most often.

        `noise`: the noise multiplier, or that of whole updates. Where the noise of whole updates is to be calibrated it
        is as large as what it hides: the factor that it needs is what is searched for.
        """
        trainings, plan = run.work.most_trainings + run.config.retries, run.work.updates
        event: Event
        if plan is None:
            if sampling is None:
                return None
            if run.work.gradients is not None and fixed:
                event = sum_event(sampling.sampling_rate, noise, run.adjacency, run.work.gradients.count)
                return calibration.Channel(self.name, event, trainings, fixed=True)
            event = step_event(sampling.sampling_rate, noise, run.adjacency)
            return calibration.Channel(self.name, event, trainings * sampling.steps, fixed=fixed)
        if fixed:
            whole = noise if isinstance(noise, VectorNoise) else plan.noise(noise)
            event = whole.event(run.adjacency, run.unit)
        else:
            event = Gaussian(1.0, 1.0, run.adjacency, run.unit)
        return calibration.Channel(self.name, event, trainings, fixed=fixed)

    # ---- what is checked

    def require_agreed(
        self, found: TrainRequest, planned: TrainRequest, release_plan: ReleasePlan, run: AgreedRun
    ) -> None:
        """What privacy rests on to the last bit, other numbers up to rounding; weight and objective within the plan."""
        agreed = planned.work
        require(type(found.work) is type(agreed), "The training is not asked for as agreed (DP-SGD, or not).")
        for name, value in asdict(agreed).items():
            given = getattr(found.work, name)
            exact = not isinstance(value, float) or (isinstance(agreed, PrivateWork) and name in NOISE)
            same = given == value if exact else close(given, value)
            require(same, f"The training is not asked for as agreed: {name} is {given}, and was to be {value}.")
        same = (found.release, found.gradient) == (planned.release, planned.gradient)
        require(same, "The training is not asked for as agreed: clipping and noise.")
        same = found.participation == planned.participation
        require(same, "The training is not asked for as agreed: participation.")
        require((found.features is None) == (planned.features is None), "The features are not asked for as agreed.")
        if found.features is not None and planned.features is not None:
            FeaturesChannel().require_agreed(found.features, planned.features, release_plan, run)
        require(found.correct == planned.correct, "The training is not asked for as agreed: control variates.")
        snapshot = found.snapshot_at is not None
        require(snapshot == run.algorithm.snapshots, "The training is not asked for as agreed: snapshots.")
        if run.planner is not None:
            require(close(found.weight, planned.weight), "The weight is not that of the released counts.")
        most = 1 / planned.participation
        require(0 <= found.weight <= most * (1 + 1e-9), "The weight is no share of a whole.")
        _require_objective(found.objective, found.round, release_plan, run)

    def check_reply(self, request: TrainRequest, reply: Update, client: str, form: ReplyCheck) -> None:
        """A contribution of the right size; from another machine one that can be added, and, if opened, is finite."""
        name = f"contribution of client {client!r}"
        form.adder.check(reply.contribution, form.size, name)
        whole = request.release is not None or request.gradient is not None
        weight = 1.0 if whole else request.weight  # of whole numbers with noise, the weight is in the numbers
        form.require_readable(form.adder, reply.contribution, weight, name, client, request.round)
        if form.replica is not None:
            change = form.replica.aggregator.open(reply.contribution)
            if not (np.abs(change) <= LARGEST).all():
                raise InputError(name, "must be finite", "nan or inf", "Try a smaller learning rate.")

    # ---- for people

    def describe(self, release_plan: ReleasePlan, config: Config, work: Workload) -> Description | None:
        """Noise on the sum of clipped gradients, or on the whole update."""
        u, c = release_plan.updates, release_plan.client_updates
        if c is not None:
            facts = {
                "mechanism": "gaussian (whole updates, clipped; integers)",
                "noise_multiplier": c.noise.multiplier,
                "unit": "the largest part of one client",
                "max_update_norm": c.max_norm,
                "largest_weight": c.largest_weight,
                "parameters": c.noise.count,
                "grid_step": 1 / c.noise.steps,
                "shares": c.noise.shares,
            }
            noise = f"gaussian, {c.noise.multiplier:.3g} × the largest part of one client{by_several(c.noise)}"
            return Description(
                noise, f"{work.most_trainings} × {c.noise.count} parameters, cut to a length of {c.max_norm:g}", facts
            )
        if u is None:
            return EXACT if config.privacy.updates == "none" else None
        if u.gradient is not None:
            shared = u.gradient.noise
            facts = {
                "mechanism": "gaussian (DP-SGD on the sum of all clients' gradients; integers)",
                "noise_multiplier": u.noise_multiplier,
                "max_grad_norm": u.max_grad_norm,
                "sampling_rate": u.sampling_rate,
                "steps_per_round": 1,
                "parameters": shared.count,
                "grid_step": u.max_grad_norm / shared.steps,
                "shares": shared.shares,
            }
            return Description(
                f"gaussian, {u.noise_multiplier:.3g} × clipping at {u.max_grad_norm:g}{by_several(shared)}",
                f"{work.most_trainings} × 1 step on the sum, rate {u.sampling_rate:.3g}",
                facts,
            )
        facts = {
            "mechanism": f"gaussian (DP-SGD, {'stacked engine' if config.run.engine == 'stacked' else 'Opacus'})",
            "noise_multiplier": u.noise_multiplier,
            "max_grad_norm": u.max_grad_norm,
            "sampling_rate": u.sampling_rate,
            "steps_per_round": u.steps,
        }
        noise = f"gaussian, {u.noise_multiplier:.3g} × clipping at {u.max_grad_norm:g}"
        return Description(noise, f"{work.most_trainings} × {u.steps} steps, rate {u.sampling_rate:.3g}", facts)


def _trained(
    request: TrainRequest, client: Client, start: FloatArray, shift: FloatArray | None, entropy: Entropy
) -> Trained:
    """Where the client's own training ends."""
    if isinstance(request.work, PrivateWork) or request.gradient is not None:
        # Whoever knew the masks of dropout would see one record shift those of all after it: they are secret, too.
        seed = secrets.randbits(128) if entropy.claim else client.seed
        with torch_seeded(seed, "module", request.round, client.index):
            if request.gradient is not None:
                return sum_gradients(request, start, client.data, client.model, entropy)
            return train_privately(request, start, client.data, client.model, entropy, shift)
    if not len(client.data.records):  # nothing to learn from: no step, whatever was asked
        return Trained(start, 0, None)
    rng = stream(client.seed, "minibatches", request.round, client.index)
    with torch_seeded(client.seed, "module", request.round, client.index):
        return train_locally(request, start, client.data, client.model, rng, shift)


def step_event(sampling_rate: float, noise_multiplier: float, adjacency: Adjacency) -> Event:
    """One step of DP-SGD, in units of max_grad_norm: replacing a record moves the sum of gradients twice as far."""
    if adjacency is Adjacency.ADD_OR_REMOVE:
        return PoissonSampled(sampling_rate, Gaussian(noise_multiplier, 1.0, adjacency))
    return PoissonSampled(sampling_rate, Gaussian(noise_multiplier, 2.0, adjacency), presence_sensitivity=1.0)


def sum_event(sampling_rate: float, noise: VectorNoise | float, adjacency: Adjacency, count: int = 0) -> Event:
    """One step of DP-SGD whose noise is whole numbers: what `step_event` costs with a little less noise.

    Discrete noise of σ steps costs at most what Gaussian noise of √(σ² − 4) steps does (see
    `mechanisms.vector_release`), and shares have 16 steps or more. Before the grid is known, `count`, the number of
    parameters, bounds it: a grid has 16·√count steps in a clipping norm or more, so that √(z² − 1/(64·count)) is left
    of a multiplier of z.
    """
    if isinstance(noise, VectorNoise):
        multiplier, smoothed = noise.multiplier, (SMOOTHING / noise.steps) ** 2
    else:
        multiplier, smoothed = noise, (SMOOTHING / LEAST_NOISE) ** 2 / count
    if not multiplier**2 > 2 * smoothed:
        raise InputError("noise multiplier of updates", f"must be above {math.sqrt(2 * smoothed):g}", multiplier)
    left = math.sqrt(multiplier**2 - smoothed)
    return step_event(sampling_rate, math.nextafter(left, 0.0), adjacency)


def multiplier_for(needed: float, count: int) -> float:
    """The multiplier of discrete noise whose `sum_event` has at least the needed one, for so many parameters."""
    found = max(math.sqrt(needed**2 + (SMOOTHING / LEAST_NOISE) ** 2 / count), SMOOTHING / math.sqrt(count) / 8)
    return found * (1 + 1e-12)


def require_features(shared: SealedFeatures, number: int, release_plan: ReleasePlan, run: AgreedRun) -> None:
    """Raise `Declined` unless a round's shared features are those of the agreed method, groups and target."""
    algorithm, other = run.algorithm, "The penalty is not the agreed one."
    if not isinstance(algorithm, EmbeddingTracking):
        raise Declined(other)
    require((shared.kernel, shared.strength) == (algorithm.plan.kernel, algorithm.strength), other)
    require(equal(shared.counts, release_plan.cell_totals), "The counts are not those of the terms.")
    reported = np.where(takes_part(release_plan), release_plan.cells, 0).sum(axis=0)
    within = shared.shares.shape == reported.shape and bool(
        (shared.shares >= 0).all() and (shared.shares <= reported).all()
    )
    require(within, "The shared features are not those of the agreed groups.")
    lag = 0 < number <= run.plan.rounds_with_features
    require(lag or shared.within is None, "The shared features are not in the agreed sum.")
    require((shared.steering is None) == (algorithm.tests is None), other)
    if shared.steering is not None:  # how many test records others have is not known here
        agreed, found = steering(algorithm.plan, release_plan, 1.0), shared.steering
        same = found.errors.shape == agreed.errors.shape and np.allclose(found.errors, agreed.errors, rtol=1e-9, atol=0)
        require(bool(same) and close(found.noise, agreed.noise), "The noise of the decisions is not the agreed one.")
        usable = found.tests.shape == agreed.tests.shape and bool(np.isfinite(found.tests).all())
        require(usable and bool((found.tests >= 0).all()), "The numbers of test records are not numbers.")


def _require_objective(objective: Objective, number: int, release_plan: ReleasePlan, run: AgreedRun) -> None:
    """Raise `Declined` unless the objective is that of the agreed method, kernel and strength."""
    method, fairness = run.config.federation.method, run.config.fairness
    require(isinstance(objective, OBJECTIVES[method]), f"{method} has another objective.")
    other = "The penalty is not the agreed one."
    if isinstance(objective, OwnPenalty):
        require((objective.kernel, objective.strength) == (fairness.kernel, fairness.strength), other)
    if not isinstance(objective, Tracked):
        return
    shared, algorithm = objective.shared, run.algorithm
    if isinstance(shared, SealedFeatures) and isinstance(algorithm, EmbeddingTracking):
        require(objective.drift == algorithm.drift, other)
        require_features(shared, number, release_plan, run)
    elif isinstance(shared, SharedScores) and isinstance(algorithm, MmdFedAvg):
        same = (shared.kernel, shared.strength) == (fairness.kernel, fairness.strength)
        require(same and objective.drift == run.config.federation.drift_correction, other)
        count = len(run.cells)
        sizes = {len(shared.scores), len(shared.weights), len(shared.counts)}
        whole = sizes == {count} and all(s.shape == w.shape for s, w in zip(shared.scores, shared.weights, strict=True))
        require(whole, "The shared scores are not those of the agreed groups.")
        require((shared.noisy is None) == (release_plan.sharing is None), "The shared scores are not noisy as agreed.")
    else:
        raise Declined(other)
