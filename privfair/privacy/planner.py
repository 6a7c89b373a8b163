"""From a target ε to a release plan: who takes part, at which rates, and the least noise that meets the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from accountant.bounds import Method, by_pld, spent
from accountant.calibration import Channel, calibrate
from accountant.errors import InputError, Refused
from accountant.events import Composed, Nothing
from accountant.pld_profiles import TooFine
from accountant.spending import TEST
from privfair.channels.base import CALIBRATED, registered
from privfair.channels.counts import COUNTS
from privfair.channels.features import EMBEDDINGS, FeaturesChannel
from privfair.channels.moments import MOMENTS, PRODUCTS
from privfair.channels.scores import PREDICTIONS, ScoresChannel
from privfair.channels.updates import UPDATES, UpdatesChannel, multiplier_for
from privfair.channels.workload import COUNT_DELTA, PrivateRun, Sampling, sampling_of
from privfair.config import MOST_LOCAL_STEPS, MOST_RECORDS
from privfair.fairness.tracking import largest_remainder_quotas
from privfair.federated.messages import Counts
from privfair.federated.release_plan import Claim, ClientUpdates, PrivateEmbedding, PrivateUpdates, ReleasePlan, Sharing
from privfair.kernels.families import parse_kernel
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import GradientRelease, VectorNoise
from privfair.util import FloatArray


def calibrated_factor(channels: Sequence[Channel], epsilon: float, delta: float, method: Method) -> float:
    """What all noise that is not fixed must be multiplied by, for these channels to cost at most ε at δ."""
    try:
        return calibrate(channels, epsilon, delta, method).factor
    except TooFine:
        rule = "must be large enough for the grid of PLD"
        raise InputError("privacy.epsilon", rule, epsilon, 'Or set privacy.target_method = "rdp".') from None


# ---- From a budget to noise: what every channel of a run costs, and the least noise that meets the target.
# Two ways, told apart by `one_phase`:
#
# - One phase. Rates, steps and rounds are in the configuration, so the whole plan is fixed before its first release,
# and all channels compose together (PLD or RDP). - Two phases. Counts are released first, at a price ε_c that is
# fixed; a public rule turns them into rates and steps, and the rest is calibrated to what is left. Whatever the
# counts say, the rest costs at most ε − ε_c at δ − δ_c, so the whole is (ε, δ)-private by adaptive composition (Dwork
# & Roth 2014, Theorem B.1 and section 3.5). Moments of features, whose noise depends on no count, are of the rest.
#
# δ must be below 1/n, and who has not declared n (privacy.records) learns it from released counts. If they add up to
# n ≥ 1/δ, the run is planned for δ′ = 1/(10·n) ≤ δ/10 instead: no error after a release. What then holds:
#
#     For every set S of outcomes in which released counts add up to n:  P[S | D] ≤ e^ε P[S | D′] + δ′.
#
# The noise of the rest depends on n then, so it is a plan of two phases, whatever is configured. Counts and evaluation,
# whose noise is settled, cost (ε_c, δ_c) with δ_c a tenth of δ′ (0 for Laplace noise), and the rest is calibrated to
# (ε − ε_c, δ′ − δ_c), which composes as above. Where the configured noise leaves nothing to calibrate at δ′, the plan
# stays that of (ε, δ), and its ε at δ′ is stated, which is larger: on those outcomes the mechanism is the one that was
# fixed beforehand (or that is calibrated to a δ which does not depend on n), and that has an ε at every δ.
#
# Outcomes with n < 1/δ are those of the plan for (ε, δ). Without naming n, P[S | D] ≤ e^ε P[S | D′] + δ for two
# phases with Laplace counts, where the δ of all n are averaged; otherwise δ may grow by a tenth, times the
# probability that the released n reaches 1/δ.
#
# The plan holds for the worst record: one of the group that is sampled at the highest rate, at a client that trains
# most often. Where whole clients are protected it holds for the worst client. `retries` repetitions that a crash may
# need are part of it.


# Two phases, PLD target: by RDP the rest costs at most so many times its ε, so that RDP has a bound as well.
LOOSER = 1.2
MOST_OF_REST = 0.98  # two phases: what fairness may take of what counts and evaluation leave

Fairness = ScoreNoise | VectorNoise  # noise of what is shared for fairness: scores, or sums of features
Noise = tuple[Fairness | None, float | None]  # of what is shared for fairness, and the noise multiplier of updates


@dataclass(frozen=True)
class Planner(PrivateRun):
    """Calibrates the noise of one run."""

    def fixed(self) -> list[Channel]:
        """The channels whose noise is settled first: counts, evaluation and all others that are not calibrated."""
        return [c for c in self._settled() if c.name not in self._on_test]

    def tested(self) -> list[Channel]:
        """The channels of test records alone, where they are paid for by these records alone (`sided`)."""
        return [c for c in self._settled() if c.name in self._on_test]

    def _settled(self) -> list[Channel]:
        found = [channel.worst_case(self) for channel in registered() if channel.name not in CALIBRATED]
        return [channel for channel in found if channel is not None]

    def scaling(self) -> list[Channel]:
        """What features are scaled by: settled first, and of two phases in the second, with what is calibrated."""
        return [channel for channel in self.fixed() if channel.name in (MOMENTS, PRODUCTS)]

    @property
    def _on_test(self) -> set[str]:
        return {channel.name for channel in registered() if self.sided and channel.side == TEST}

    def price_of_test_side(self, channels: Sequence[Channel]) -> tuple[float, float]:
        """(ε by RDP, ε by PLD) of a test record, at the run's δ."""
        whole = Composed(tuple(channel.total for channel in channels))
        return (spent(whole, self.delta, "rdp").epsilon, by_pld(whole, self.delta)) if channels else (0.0, 0.0)

    def _fairness_channel(self, sampling: Sampling, noise: Fairness, *, fixed: bool) -> Channel | None:
        """What is shared for fairness in all rounds, for the record, or client, that pays most for it."""
        channel = FeaturesChannel() if isinstance(noise, VectorNoise) else ScoresChannel()
        return channel.worst_case(self, sampling, noise, fixed=fixed)

    def _updates(self, sampling: Sampling, noise: float | VectorNoise, *, fixed: bool = True) -> list[Channel]:
        """The updates of all rounds, for a client that trains most often."""
        found = UpdatesChannel().worst_case(self, sampling, noise, fixed=fixed)
        return [] if found is None else [found]

    def fairness_channel(self, release_plan: ReleasePlan) -> Channel | None:
        """What fairness costs over all rounds the record, or client, that pays most for it, under these terms."""
        noise = release_plan.fairness_noise
        if noise is None:
            return None
        return self.under(release_plan)._fairness_channel(sampling_of(release_plan), noise, fixed=True)

    def channels(self, release_plan: ReleasePlan) -> list[Channel]:
        """All that a run under these terms may release, with its noise, for the record or client that pays most.

        These are the channels that the claim of the terms is the price of: with room for repetitions after a crash.
        """
        multiplier = None if release_plan.updates is None else release_plan.updates.noise_multiplier
        if release_plan.client_updates is not None:
            multiplier = release_plan.client_updates.noise.multiplier
        planner = replace(self.under(release_plan), count_releases=release_plan.count_releases)
        rest = planner.rest(sampling_of(release_plan), release_plan.fairness_noise, multiplier)
        return [*planner.fixed(), *rest, *planner.tested()]

    def price(self, channels: Sequence[Channel], *, together: bool | None = None) -> tuple[float, float]:
        """(ε by RDP, ε by PLD) of these channels at the run's δ.

        `together`: those of one phase compose at once. Of two, the ε of the first phase, at its share of δ, is added to
        that of the second, at the rest of δ (basic composition, see above). Where sides pay for themselves: the larger
        price of the two.
        """
        tested = self.price_of_test_side([c for c in channels if c.name in self._on_test])
        channels = [c for c in channels if c.name not in self._on_test]
        first, share, later = 0.0, 0.0, list(channels)
        if not (self.together if together is None else together):
            settled = [channel for channel in channels if channel.name not in (*CALIBRATED, MOMENTS, PRODUCTS)]
            first, share = self._first_phase(settled, "pld")
            later = [channel for channel in channels if channel not in settled]
        rest, delta = Composed(tuple(channel.total for channel in later)), self.delta - share
        trained = first + spent(rest, delta, "rdp").epsilon, first + by_pld(rest, delta)
        return max(trained[0], tested[0]), max(trained[1], tested[1])

    def under(self, release_plan: ReleasePlan) -> Planner:
        """The planner with the δ of these terms, and with their counts where they are public."""
        delta = (
            None
            if release_plan.claim is None or release_plan.claim.delta == self.config.delta
            else release_plan.claim.delta
        )
        counts = None if self.config.counts != "public" else release_plan.cells
        return replace(self, public_counts=counts, released_delta=delta)

    @property
    def together(self) -> bool:
        """Whether all channels compose at once, as nothing that is calibrated depends on what is released."""
        fixed = self.released_delta is None or self.config.counts == "public" or self.config.epsilon is None
        return self.one_phase and fixed

    def terms_beforehand(self, clients: int) -> ReleasePlan:
        """The terms as far as they are known before counts: all of one phase, the counts alone of two."""
        ones = np.ones(clients, dtype=np.int64)
        cells = np.ones((clients, len(self.cells)), dtype=np.int64)
        if not self.one_phase or self.config.counts == "public":
            return ReleasePlan(0 * ones, cells, counting=self.count_noise)
        return self.release_plan(self._configured(clients), ones, cells, 0)

    def release_plan(
        self,
        sampling: Sampling,
        records: NDArray[np.int64],
        cells: NDArray[np.int64],
        least: int,
        noise: Noise | None = None,
    ) -> ReleasePlan:
        """The terms of these rates, with the noise that meets the target, for these counts.

        `noise`: what somebody else found to meet it. It is not searched for again, but held against the target.
        """
        scores, multiplier, claim = self.calibrated(sampling) if noise is None else self._checked(sampling, *noise)
        sharing, embedding, updates = None, None, None
        if scores is not None and sampling.quotas is not None:
            if isinstance(scores, VectorNoise):
                embedding = PrivateEmbedding(scores, sampling.quotas)
            else:
                sharing = Sharing(scores, sampling.quotas, sampling.rates, self.config.kernel_correction)
        if multiplier is not None and self.work.updates is None:
            updates = self._private_updates(sampling, multiplier, int(records.sum()))
        return ReleasePlan(
            records=records,
            cells=cells,
            least=least,
            sharing=sharing,
            embedding=embedding,
            updates=updates,
            client_updates=None if multiplier is None else self._client_updates(multiplier, records),
            counting=self.count_noise,
            count_releases=self.count_releases,
            evaluation=self.evaluation_noise,
            claim=claim,
            cohort=self.work.cohort,
            totals=self.work.counts_in_shares and self.count_noise is not None,
            moments=self.moments(int(records.sum())),
        )

    def _private_updates(self, sampling: Sampling, multiplier: float, records: int) -> PrivateUpdates:
        """How clients run DP-SGD; where a round is one step on the sum of all, with integer noise that comes in shares.

        `records`: as released. A step's sum has room for more of them than a sample is likely to have.
        """
        c, plan, rate = self.config, self.work.gradients, sampling.sampling_rate
        if plan is None:
            return PrivateUpdates(sampling.steps, rate, multiplier, c.max_grad_norm)
        expected = rate * max(records, 1)
        most = math.ceil(1.1 * expected + 6 * math.sqrt(expected) + 100)
        noise = plan.noise(multiplier, most)
        gradient = GradientRelease(c.max_grad_norm, plan.room(noise, most), noise)
        w = self.work
        rates = (w.learning_rate, w.learning_rate_decay, w.participation, w.damped)
        return PrivateUpdates(1, rate, multiplier, c.max_grad_norm, gradient, *rates)

    def _client_updates(self, multiplier: float, records: NDArray[np.int64]) -> ClientUpdates | None:
        """How whole updates are released, where they are."""
        plan = self.work.updates
        if plan is None:
            return None
        largest = float((records / records.sum()).max()) / plan.participation
        return ClientUpdates(plan.noise(multiplier), plan.max_norm, largest)

    def steps(self, sampling_rate: float) -> int:
        """Local steps of a round: configured, or as many as make the configured epochs in the mean; one on a sum."""
        if self.work.gradients is not None:
            return 1
        steps = self.config.local_steps or max(1, round(self.work.epochs / sampling_rate))
        if steps > MOST_LOCAL_STEPS and self.config.updates == "dp_sgd":
            rule = f"must be at most {MOST_LOCAL_STEPS:,} a round (local_epochs / sampling rate)"
            remedy = "Take larger minibatches (federation.batch_size, privacy.sampling_rate), or fewer local_epochs."
            raise InputError("local steps", rule, steps, remedy)
        return steps

    def _configured(self, clients: int = 1) -> Sampling:
        """The sampling of a plan of one phase, with every cell taking part."""
        c, shape = self.config, (clients, len(self.cells))
        rate = c.sampling_rate or 1.0
        if not self.noisy_sharing:
            return Sampling(rate, self.steps(rate), None, None)
        return Sampling(
            rate, self.steps(rate), np.ones(shape, dtype=np.int64), np.full(shape, c.prediction_rate or 1.0)
        )

    # ---- calibration

    def require_plannable(self) -> None:
        """Raise the reason if the configuration cannot be planned, as far as that does not depend on counts.

        Called before anything is released: a wrong key must not cost counts.
        """
        c = self.config
        self.require_delta()
        if c.epsilon is None and not self.one_phase:
            rule = "must be given where rates are planned from released counts"
            remedy = "Or give privacy.sampling_rate and privacy.prediction_rate: then the plan is fixed beforehand."
            raise InputError("privacy.epsilon", rule, None, remedy)
        if c.sampling_rate is not None:
            self.steps(c.sampling_rate)
        if self.one_phase and c.counts != "public":
            self.calibrated(self._configured())
            return
        if self.noisy_sharing and self.work.embedding is not None:
            self.work.embedding.noise(c.prediction_noise or 100.0)
        elif self.noisy_sharing and c.predictions != "none":
            low, high = self._require_range()
            self._require_kernel(ScoreNoise(c.predictions, c.prediction_noise or 1e-3 * (high - low), low, high))
        if c.updates != "none" and c.noise_multiplier is None:
            self.target("noise_multiplier")
        elif self.work.updates is not None and c.noise_multiplier is not None:
            self.work.updates.noise(c.noise_multiplier)
        if self.noisy_sharing and c.prediction_noise is None:
            self.target("prediction_noise")
        if c.epsilon is not None:
            left, _ = self._left()
            self._require_shares(left)

    def _require_shares(self, left: float) -> None:
        """Raise if what is shared for fairness is to cost all that counts and evaluation leave, whatever the rates."""
        c = self.config
        if self.one_phase or not self.noisy_sharing or not self._shares_epsilon:
            return
        shared = self._fairness_share
        if shared > MOST_OF_REST * left:
            settled = f"{shared:.4g} for predictions and {self.target('epsilon') - left:.4g} for counts and evaluation"
            remedy = "Take a smaller privacy.prediction_share, or more noise of counts."
            raise InputError("privacy.epsilon", f"must leave something to updates, after {settled}", c.epsilon, remedy)

    def calibrated(self, sampling: Sampling) -> tuple[Fairness | None, float | None, Claim]:
        """Noise for fairness and noise multiplier of updates that meet the target with these rates, and the claim.

        At a δ that follows from released counts there may be none; then that of the configured δ, with its ε at δ′.
        """
        try:
            return self._calibrated(sampling)
        except InputError:
            if self.released_delta is None or not self._rigid:
                raise
        scores, multiplier, _ = replace(self, released_delta=None)._calibrated(sampling)
        return scores, multiplier, self._unmet(self.rest(sampling, scores, multiplier))

    @property
    def _rigid(self) -> bool:
        """Whether noise is given, or settled before the counts at their own δ: it may be too little for another δ."""
        c = self.config
        settled = (c.counts,) if self.sided else (c.counts, c.evaluation)
        fixed = "gaussian" in settled or self.work.moments is not None
        return fixed or any(value is not None for value in c.noise.values())

    def _calibrated(self, sampling: Sampling) -> tuple[Fairness | None, float | None, Claim]:
        scores = self._fairness_noise(sampling)
        if isinstance(scores, ScoreNoise):
            self._require_kernel(scores)
        try:
            multiplier = self._multiplier(sampling, scores)
        except InputError:
            # of records that are sampled rarely RDP has a far larger bound than PLD, which may leave nothing to updates
            looser = None if self.together or not self._shares_epsilon else self._fairness_noise(sampling, by_rdp=True)
            if looser is None or looser == scores:
                raise
            scores, multiplier = looser, self._multiplier(sampling, looser)
        return scores, multiplier, self._claim(self.rest(sampling, scores, multiplier))

    def _checked(
        self, sampling: Sampling, scores: Fairness | None, multiplier: float | None
    ) -> tuple[Fairness | None, float | None, Claim]:
        """The noise and its claim, if it is of the planned kind, as given where it is given, and within the target."""
        c, kind = self.config, self.config.predictions
        if (scores is not None) != (self.noisy_sharing and kind != "none") or (multiplier is None) != (
            c.updates == "none"
        ):
            raise InputError("noise", "must be on the planned channels", "another")
        if isinstance(scores, VectorNoise):
            plan = self.work.embedding
            if plan is None or scores != plan.noise(c.prediction_noise or scores.multiplier):
                raise InputError("noise of features", "must be as planned", scores)
        elif scores is not None and kind != "none":
            low, high = self._require_range()
            if self.work.embedding or scores != ScoreNoise(kind, c.prediction_noise or scores.scale, low, high):
                raise InputError("noise of scores", "must be as planned", scores)
            self._require_kernel(scores)
        if multiplier is not None and not (multiplier > 0 and c.noise_multiplier in (None, multiplier)):
            raise InputError("noise multiplier", "must be as planned", multiplier)
        if c.epsilon is None and None in (
            c.prediction_noise if scores else 0.0, c.noise_multiplier if multiplier else 0.0
        ):  # fmt: skip
            raise InputError("privacy.epsilon", "must be given where noise is not", None)
        rest = self.rest(sampling, scores, multiplier)
        try:
            return scores, multiplier, self._claim(rest)
        except InputError:
            if self.released_delta is None or not self._rigid:
                raise
        replace(self, released_delta=None)._claim(rest)  # raises if the target is not met at the configured δ either
        return scores, multiplier, self._unmet(rest)

    def rest(
        self, sampling: Sampling, scores: Fairness | None, multiplier: float | VectorNoise | None
    ) -> list[Channel]:
        """Fairness and updates with their noise, fixed."""
        channels = []
        if scores is not None:
            found = self._fairness_channel(sampling, scores, fixed=True)
            channels += [found] if found else []
        if multiplier is not None:
            channels += self._updates(sampling, multiplier)
        return channels

    @property
    def _shares_epsilon(self) -> bool:
        """Whether noise of both is calibrated: of what is shared for fairness, and of updates."""
        c = self.config
        return c.updates != "none" and c.noise_multiplier is None and c.prediction_noise is None

    def _fairness_noise(self, sampling: Sampling, *, by_rdp: bool = False) -> Fairness | None:
        """For fairness: given, or from its share of ε; all that is left where updates have no noise to calibrate.

        `by_rdp`: so much that its share of ε is met by RDP as well, up to the same factor as that of the whole plan.
        """
        c, kind, plan = self.config, self.config.predictions, self.work.embedding
        if not self.noisy_sharing or kind == "none":
            return None
        start: Fairness
        if plan is not None:
            start = plan.noise(c.prediction_noise or max(1.0, plan.least_noise))
        else:
            low, high = self._require_range()
            start = ScoreNoise(kind, c.prediction_noise or high - low, low, high)
        if c.prediction_noise is not None:
            return start
        channel = self._fairness_channel(sampling, start, fixed=False)
        self.target("prediction_noise")
        if channel is None or channel.event == Nothing():
            return start  # no cell is large enough to be shared
        if c.updates == "none" or c.noise_multiplier is not None:
            others = [] if c.noise_multiplier is None else self._updates(sampling, c.noise_multiplier)
            factor = self._factor([channel, *others])
        else:
            factor = calibrated_factor([channel], self._fairness_share, self.delta, c.target_method)
            if by_rdp:
                factor = max(factor, calibrated_factor([channel], LOOSER * self._fairness_share, self.delta, "rdp"))
        if isinstance(start, VectorNoise):
            return start.with_event_scale(start.event().noise_scale * factor)
        return start.with_grid_scale(start.grid_scale * factor)

    @property
    def _fairness_share(self) -> float:
        """The ε of what is shared for fairness, where its noise is calibrated by itself."""
        # noise on sums disturbs far less than noise on scores: they can do with less of ε
        share = self.config.prediction_share or (0.5 if self.work.embedding is None else 0.3)
        return share * self.target("prediction_noise")

    def _require_range(self) -> tuple[float, float]:
        if self.work.score_range is None:
            remedy = "Give privacy.score_range = [low, high]: scores beyond it are clipped."
            raise InputError("fairness.notion", "must compare scores that have a range", "a loss", remedy)
        return self.work.score_range

    def _require_kernel(self, noise: ScoreNoise) -> None:
        """Raise `NoDeconvolution`, with a remedy, if the kernel cannot be corrected for this noise as asked."""
        if self.config.kernel_correction == "deconvolve":
            parse_kernel(self.work.kernel).deconvolve(noise.noise)

    def _multiplier(self, sampling: Sampling, scores: Fairness | None) -> float | None:
        """Of updates: given, or what the target leaves."""
        c = self.config
        if c.updates == "none":
            return None
        if c.noise_multiplier is not None:
            return c.noise_multiplier
        self.target("noise_multiplier")
        factor = self._factor([*self._updates(sampling, 1.0, fixed=False), *self.rest(sampling, scores, None)])
        if self.work.updates is not None:
            return self.work.updates.calibrated(factor).multiplier
        return factor if self.work.gradients is None else multiplier_for(factor, self.work.gradients.count)

    def _factor(self, channels: list[Channel]) -> float:
        """The least noise factor that meets the target together with everything that is fixed."""
        c = self.config
        epsilon, delta = self._left()
        channels = [*(self.fixed() if self.together else self.scaling()), *channels]
        try:
            factor = calibrated_factor(channels, epsilon, delta, c.target_method)
            if not self.together and c.target_method == "pld":
                factor = max(factor, calibrated_factor(channels, LOOSER * epsilon, delta, "rdp"))
        except InputError as error:
            raise self._explained(error, [channel for channel in channels if channel.fixed], delta) from None
        return factor

    def _explained(self, error: InputError, fixed: list[Channel], delta: float) -> InputError:
        """An ε that no noise can meet, in terms of what was settled before; any other error as it is."""
        c = self.config
        settled = [f"privacy.{key} = {value:g}" for key, value in c.noise.items() if value is not None]
        if c.prediction_noise is None and any(channel.name in (PREDICTIONS, EMBEDDINGS) for channel in fixed):
            settled.append("privacy.prediction_share")
        if error.name != "epsilon" or not settled:
            return error
        together = Composed(tuple(channel.total for channel in fixed))
        price = by_pld(together, delta) if c.target_method == "pld" else spent(together, delta, "rdp").epsilon
        price += 0.0 if self.together else self.price_of_first_phase("pld")[0]
        rule = f"must leave something to the noise that is calibrated, after {price:.4g} for what is settled"
        remedy = f"Settled by {', '.join(settled)}: take more noise, a smaller share, or leave it out."
        return InputError("privacy.epsilon", rule, c.epsilon, remedy)

    def _left(self) -> tuple[float, float]:
        """(ε, δ) that the calibrated channels, in one phase with the fixed ones, may cost."""
        epsilon, delta = self.target("epsilon"), self.delta
        if self.together:
            return epsilon, delta
        price, share = self.price_of_first_phase("pld")
        if price >= epsilon:
            remedy = "Give counts and evaluation more noise or a smaller share."
            rule = f"must exceed what counts and evaluation cost, {price:.3g}"
            raise InputError("privacy.epsilon", rule, epsilon, remedy)
        return epsilon - price, delta - share

    def price_of_counts(self) -> float:
        """ε of the counts alone, as often as they were released: at δ = 0, or at their part of δ for Gaussian noise."""
        counts = [channel.total for channel in self.fixed() if channel.name == COUNTS]
        pure = self.config.counts != "gaussian"
        return spent(Composed(tuple(counts)), 0.0 if pure else self.delta * COUNT_DELTA, "rdp").epsilon

    def price_of_first_phase(self, method: Method) -> tuple[float, float]:
        """(ε, δ) of the channels of the first of two phases."""
        return self._first_phase([c for c in self.fixed() if c.name not in (MOMENTS, PRODUCTS)], method)

    def _first_phase(self, channels: Sequence[Channel], method: Method) -> tuple[float, float]:
        fixed = Composed(tuple(channel.total for channel in channels))
        pure = self.config.counts != "gaussian" and (self.sided or self.config.evaluation != "gaussian")
        share = 0.0 if pure else self.delta * COUNT_DELTA
        return spent(fixed, share, "rdp" if pure else method).epsilon, share

    @property
    def without_noise(self) -> tuple[str, ...]:
        """Channels of which exact values leave the clients: with any, there is no ε."""
        shared = self.work.shares_scores and self.config.predictions == "none"
        fairness = PREDICTIONS if self.work.embedding is None else EMBEDDINGS
        return (*((fairness,) if shared else ()), *((UPDATES,) if self.config.updates == "none" else ()))

    def _claim(self, rest: list[Channel]) -> Claim:
        """The bounds that hold whatever is released; what the given noise costs beyond the target is refused."""
        c = self.config
        if self.without_noise:
            return Claim(math.inf, math.inf, self.delta, two_phases=not self.one_phase)
        if self.together:
            claim = Claim(*self.price([*self.fixed(), *rest, *self.tested()]), self.delta)
            if c.epsilon is not None:
                self._require_within(getattr(claim, c.target_method), c.epsilon)
            return claim
        epsilon, (left, delta) = self.target("epsilon"), self._left()
        later = Composed(tuple(channel.total for channel in (*self.scaling(), *rest)))
        by_rdp = spent(later, delta, "rdp").epsilon
        tested = self.price_of_test_side(self.tested())
        self._require_within(tested[0 if c.target_method == "rdp" else 1], epsilon)
        if c.target_method == "rdp":
            self._require_within(epsilon - left + by_rdp, epsilon)
            return Claim(epsilon, epsilon, self.delta, two_phases=True)
        self._require_within(epsilon - left + by_pld(later, delta), epsilon)
        self._require_within(by_rdp, LOOSER * left)
        return Claim(max(epsilon - left + LOOSER * left, tested[0]), epsilon, self.delta, two_phases=True)

    def _unmet(self, rest: list[Channel]) -> Claim:
        """The bounds, at the δ that follows from released counts, of noise that meets the target at another δ."""
        price = self.price([*self.fixed(), *rest, *self.tested()], together=self.one_phase)
        return Claim(*price, self.delta, two_phases=not self.one_phase)

    def _require_within(self, found: float, target: float) -> None:
        if found > target * (1 + 1e-9):
            rule = f"must be at least what the given noise costs, {found:.4g}"
            raise InputError("privacy.epsilon", rule, target, "Give more noise, or leave some of it to be calibrated.")


# ---- The terms of a private run: who takes part, at which rates, with how much noise; all from released counts.


class EndedAfterCounts(Refused):
    """A run whose released counts do not let it go on: no client is large enough, or no noise meets the target."""


@dataclass(frozen=True)
class PrivateCounts:
    """Clients tell noisy counts (or public ones), and a public rule makes terms of them."""

    planner: Planner
    releases_of_counts: Callable[[], int] = lambda: 1  # more than one after a crash that lost them

    @property
    def count_noise(self) -> CountNoise | None:
        """That of the plan."""
        return self.planner.count_noise

    @property
    def admits_later(self) -> bool:
        """Only where neither rates nor noise, nor the step on a sum of gradients, follow from counts."""
        planner = self.planner
        return planner.one_phase and planner.config.counts != "public" and planner.work.gradients is None

    def settle(self, counts: list[Counts], noise: Noise | None = None) -> ReleasePlan:
        """Leave out who is too small, plan the rates, calibrate the noise, or check that of others.

        Where counts are totals over all clients, nobody is left out, and the rules for small cells are for totals.
        """
        config = self.planner.config
        planner = replace(self.planner, count_releases=self.releases_of_counts())
        reported = np.array([c.records for c in counts])
        cells = np.stack([c.cells for c in counts])
        least = self._least()
        totals = planner.work.counts_in_shares and planner.count_noise is not None
        takes_part = np.full(len(counts), reported.sum() >= least) if totals else reported >= least
        if not takes_part.any():
            remedy = (
                "With so few records there is nothing to learn privately. The rule is the larger of privacy.min_count "
                "and three times the noise of counts (two for gaussian); more ε or a larger count_share lowers it."
            )
            who = "a released total" if totals else "a client with a released count"
            found = int(reported.sum() if totals else reported.max())
            raise InputError("data", f"must have {who} of at least {least}", found, remedy)
        records = np.where(takes_part, reported, 0)
        cells = np.where(takes_part[:, None], cells, 0)
        planner = replace(planner, released_delta=self._delta(int(records.sum())))
        if config.counts == "public":
            planner = replace(planner, public_counts=cells)
        return planner.release_plan(self._sampling(records, cells, least), records, cells, least, noise)

    def divided(self, total: NDArray[np.int64], members: int, clients: int) -> list[Counts]:
        """The opened total of counts, in whole records and as if nobody was absent, in even parts for every client."""
        noise = self.planner.count_noise
        if noise is None:
            raise InputError("counts", "must have noise to be totals", None)
        return self.evenly(np.rint(noise.total(total) * (clients / members)).astype(np.int64), clients)

    def evenly(self, total: NDArray[np.int64], parts: int) -> list[Counts]:
        """A total of counts as counts of so many clients: parts that add up to it and differ by at most 1."""
        whole, rest = np.divmod(total, parts)
        even = whole + (np.arange(parts)[:, None] < rest).astype(np.int64)
        return [Counts(*self.planner.cells.read(part)) for part in even]

    def ended(self, error: InputError) -> Exception:
        """The error of a run that cannot go on with the counts that it got; with what they cost, where they did."""
        if self.planner.count_noise is None:
            return error
        price = replace(self.planner, count_releases=self.releases_of_counts()).price_of_counts()
        return EndedAfterCounts(
            f"The run ended after its counts, and nothing else was released. They cost every client at most "
            f"ε = {price:.3g}, which is in the ledger. {error}"
        )

    def _delta(self, records: int) -> float | None:
        """δ′ = 1/(10·n) for a released number of records n that the configured δ is not below 1/n for; else None.

        A declared number of records was held against δ before anything was released, and δ stays what it is.
        """
        c = self.planner.config
        if c.records is not None or c.delta * records < 1:
            return None
        return 1 / (10 * min(records, MOST_RECORDS))

    def _least(self) -> int:
        """The smallest released count that is taken for more than noise: an empty cell passes once in about 40."""
        noise = self.planner.count_noise
        if noise is None:
            return 1
        tail = 3.0 if noise.kind == "laplace" else 2.0  # of exp(-t)/2, of the normal law
        cohort = self.planner.work.cohort
        if noise.shares > 1 and cohort is not None:  # a total has the shares of all holders, and more than the claim
            tail *= math.sqrt(cohort.holders / noise.shares)
        return max(self.planner.config.min_count, math.ceil(tail * noise.scale))

    def _sampling(self, records: NDArray[np.int64], cells: NDArray[np.int64], least: int) -> Sampling:
        """Rates and steps: configured, or so that minibatches and messages have the configured size in the mean.

        One rate and one number of steps for all clients: then all pay the same for updates, and a client's minibatches
        are in proportion to its records.
        """
        config, work = self.planner.config, self.planner.work
        rate = config.sampling_rate
        if rate is None and work.gradients is not None:  # a step on all records has the most signal for its noise
            rate = 1.0
        elif rate is None:
            rate = min(1.0, float(work.batch_size * np.count_nonzero(records) / records.sum()))
            if config.local_steps is None:  # larger minibatches, where there would be too many
                rate = max(rate, work.epochs / MOST_LOCAL_STEPS)
        steps = self.planner.steps(rate)
        if not work.shares_scores or config.predictions == "none":
            return Sampling(rate, steps, None, None)
        if work.embedding is not None:
            large = cells.sum(axis=0, keepdims=True) >= least if work.counts_in_shares else cells >= least
            return Sampling(rate, steps, np.broadcast_to(large, cells.shape).astype(np.int64), None)
        received = np.where(cells >= least, cells, 0)
        one_rate = self._one_rate(received)
        quotas = self._quotas(received, one_rate)
        return Sampling(rate, steps, quotas, self._rates(quotas, cells, one_rate))

    def _one_rate(self, counts: NDArray[np.int64]) -> float | None:
        """The rate of all groups, if they have one: configured, or so that as many scores are shared in all."""
        config = self.planner.config
        if config.prediction_rate is not None or not config.equalise_groups or not counts.any():
            return config.prediction_rate
        groups = int(counts.any(axis=0).sum())
        return min(1.0, groups * self.planner.work.samples / float(counts.sum()))

    def _quotas(self, counts: NDArray[np.int64], rate: float | None) -> NDArray[np.int64]:
        """How many scores a client's message has for each cell: at least one where the cell takes part."""
        config = self.planner.config
        if rate is not None and config.equalise_groups and config.counts == "public":
            few: NDArray[np.int64] = np.floor(rate * counts).astype(np.int64)
            return few  # at least one would be a higher rate where there are few records
        if rate is not None:
            planned = np.rint(rate * counts).astype(np.int64)
        else:
            planned = largest_remainder_quotas(counts, self.planner.work.samples)
        return np.where(counts > 0, np.maximum(planned, 1), 0)

    def _rates(self, quotas: NDArray[np.int64], counts: NDArray[np.int64], one_rate: float | None) -> FloatArray | None:
        """How likely a record is to be in the message; None with public counts, where exactly `quotas` are drawn."""
        if self.planner.config.counts == "public":
            return None
        if one_rate is not None:
            return np.where(quotas > 0, one_rate, 0.0)
        return np.minimum(1.0, quotas / np.maximum(counts, 1))
