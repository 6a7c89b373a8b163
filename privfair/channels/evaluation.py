"""Figures that clients report of their records: noisy confusion counts at the end; without privacy exact measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from accountant import calibration
from accountant.errors import InputError
from accountant.events import NotPrivate
from accountant.spending import TEST, Spend
from privfair.channels.base import (
    LARGEST,
    MOST_RECORDS,
    NO_MODEL,
    AgreedRun,
    Channel,
    Description,
    Phase,
    PriceList,
    ReplyCheck,
    require,
)
from privfair.channels.counts import described
from privfair.channels.workload import PrivateRun, Sampling, Workload
from privfair.clients.client import Client, confusion_tables, measure
from privfair.config import Config
from privfair.federated.messages import EvaluateRequest, Evaluation, MeasureRequest, Measures
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Schedule
from privfair.mechanisms.entropy import Entropy

EVALUATION, MEASURES = EvaluateRequest.channel, MeasureRequest.channel
BY_GROUP = {"loss": False, "confusion": True, "group_losses": True}  # measures: whether there is one for each group


class EvaluationChannel(Channel[EvaluateRequest, Evaluation]):
    """Test records by group, label and decision under the final model, with noise."""

    name: ClassVar[str] = EVALUATION
    side: ClassVar[str] = TEST
    request, reply = EvaluateRequest, Evaluation
    phase: ClassVar[Phase] = "after"

    def planned(
        self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int
    ) -> EvaluateRequest | None:
        """The same for every client; none unless the plan has noise for it."""
        return None if release_plan.evaluation is None else EvaluateRequest(NO_MODEL, release_plan.evaluation)

    def respond(self, request: EvaluateRequest, client: Client, entropy: Entropy) -> Evaluation:
        """One table for each sensitive attribute."""
        client.model.load(client.replica.result_at(request.model))
        tables = confusion_tables(client.test_data.each_record_alone, client.model, client.groups)
        if request.noise.shares > 1:
            part = request.noise.release(np.concatenate([table.ravel() for table in tables]), entropy)
            return Evaluation((), client.part_of_total(part, self.name))
        return Evaluation(tuple(request.noise.release(table, entropy) for table in tables))

    def spends(self, request: EvaluateRequest, holder: PriceList) -> tuple[Spend, ...]:
        """One row: a record is in one table for each attribute."""
        overlap = holder.cells.attributes
        event = holder.in_shares(request.noise, lambda noise: noise.event(overlap, holder.adjacency))
        return (holder.row(request, event),)

    def worst_case(
        self, run: PrivateRun, sampling: Sampling | None = None, noise: Any = None, *, fixed: bool = True
    ) -> calibration.Channel | None:
        """Once, and as often again as a crash may need."""
        if run.evaluation_noise is None:
            return None
        event = run.evaluation_noise.event(run.cells.attributes, run.adjacency)
        return calibration.Channel(self.name, event, 1 + run.config.retries, fixed=True)

    def check_reply(self, request: EvaluateRequest, reply: Evaluation, client: str, form: ReplyCheck) -> None:
        """Tables of whole numbers within bounds."""
        name = f"evaluation of client {client!r}"
        if request.noise.shares > 1:
            form.require_part_of_total(reply.contribution, len(reply.confusion), name)
            return
        if reply.contribution is not None:
            raise InputError(name, "must be numbers", "a part of a total")
        found = [np.asarray(table) for table in reply.confusion]
        if form.groups is not None:
            wanted = [(groups, 2, 2) for groups in form.groups]
            if [table.shape for table in found] != wanted:
                raise InputError(name, f"must be tables of the shapes {wanted}", f"{len(found)} others")
        for table in found:
            if not np.issubdtype(table.dtype, np.integer) or not (np.abs(table.astype(float)) <= MOST_RECORDS).all():
                raise InputError(name, f"must be whole numbers up to {MOST_RECORDS}", str(table.dtype))

    def describe(self, release_plan: ReleasePlan, config: Config, work: Workload) -> Description | None:
        """Its noise, in records."""
        noise = release_plan.evaluation
        return None if noise is None else described(noise, "once, test records")


def tables(values: NDArray[np.int64], groups: Sequence[int]) -> tuple[NDArray[np.int64], ...]:
    """Confusion counts of every attribute, (groups, label, decision), from all of them in one row."""
    ends = np.cumsum([4 * count for count in groups])
    if values.size != ends[-1]:
        raise InputError("totals of the evaluation", f"must be {ends[-1]} numbers", values.size)
    return tuple(part.reshape(-1, 2, 2) for part in np.split(values, ends[:-1]))


class MeasuresChannel(Channel[MeasureRequest, Measures]):
    """Exact local figures of training records, which some baselines need: never in a private run."""

    name: ClassVar[str] = MEASURES
    request, reply = MeasureRequest, Measures
    phase: ClassVar[Phase] = "on demand"

    def planned(
        self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int
    ) -> MeasureRequest | None:
        """All that the algorithm may ask for; it asks for some of them."""
        return MeasureRequest(NO_MODEL, schedule.measures) if schedule.measures else None

    def respond(self, request: MeasureRequest, client: Client, entropy: Entropy) -> Measures:
        """The quantities under the model, or under the mean snapshot of its last round."""
        at = client.replica.at(request.model)
        client.model.load(at.snapshot if request.at_snapshot and at.snapshot is not None else at.values)
        return Measures(measure(request.quantities, client.data, client.model))

    def spends(self, request: MeasureRequest, holder: PriceList) -> tuple[Spend, ...]:
        """They have no noise."""
        return (holder.row(request, NotPrivate()),)

    def require_agreed(
        self, found: MeasureRequest, planned: MeasureRequest, release_plan: ReleasePlan, run: AgreedRun
    ) -> None:
        """Any of the algorithm's quantities may be asked for."""
        require(set(found.quantities) <= set(planned.quantities), "The plan does not have these local figures.")

    def check_reply(self, request: MeasureRequest, reply: Measures, client: str, form: ReplyCheck) -> None:
        """Exactly the requested quantities, finite, of the form that their names say."""
        name, wanted = f"measures of client {client!r}", set(request.quantities)
        if set(reply.values) != wanted:
            raise InputError(name, f"must be {', '.join(sorted(wanted))}", f"{len(reply.values)} others")
        for quantity, values in reply.values.items():
            shape = (form.groups[0], 2, 2) if BY_GROUP.get(quantity) and form.groups else values.shape
            shape = shape if BY_GROUP.get(quantity, True) else (1,)
            if values.shape != shape or not np.issubdtype(values.dtype, np.floating):
                raise InputError(f"{quantity} of client {client!r}", f"must be numbers of shape {shape}", values.shape)
            if not (np.abs(values) <= LARGEST).all():  # NaN is not
                raise InputError(f"{quantity} of client {client!r}", "must be finite numbers", "others")

    def worst_case(
        self, run: PrivateRun, sampling: Sampling | None = None, noise: Any = None, *, fixed: bool = True
    ) -> calibration.Channel | None:
        """A private run has none."""
        return None

    def describe(self, release_plan: ReleasePlan, config: Config, work: Workload) -> Description | None:
        """A private run has none."""
        return None
