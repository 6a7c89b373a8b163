"""Whether a reply answers its request: checked before it is stored, paid for and used."""

from __future__ import annotations

import numpy as np

from accountant.errors import InputError
from privfair.federated.messages import (
    Counts,
    CountsRequest,
    Embeddings,
    EmbeddingsRequest,
    EvaluateRequest,
    Evaluation,
    MeasureRequest,
    Measures,
    Reply,
    Request,
    Scores,
    ScoresRequest,
    TrainRequest,
    Update,
)
from privfair.secure_aggregation import ServerAggregator

MOST_RECORDS = 2**31  # what nobody has; sums of larger numbers would overflow
LARGEST = 1e18  # of a score, a measure or a change: what is larger is no longer finite in float32 soon
MEASURED = {"loss": False, "confusion": True, "group_losses": True}  # by name: whether there is one for each group

KINDS: dict[type, type] = {
    CountsRequest: Counts,
    ScoresRequest: Scores,
    EmbeddingsRequest: Embeddings,
    TrainRequest: Update,
    MeasureRequest: Measures,
    EvaluateRequest: Evaluation,
}


class ReplyCheck:
    """Knows what the replies of a run must look like."""

    def __init__(
        self,
        adder: ServerAggregator,
        *,
        cells: int,
        contribution_size: int,
        features: tuple[ServerAggregator, int] | None = None,
        groups: tuple[int, ...] | None = None,
        most_records: int = MOST_RECORDS,
    ) -> None:
        """How many cells are counted, and how many numbers a contribution carries.

        `features`: who adds them, and how many a record has; None where none are shared. `groups`: how many each
        sensitive attribute has; None where nothing is asked by group. `most_records`: a count above it is refused.
        """
        self._adder, self._cells, self._size, self._features = adder, cells, contribution_size, features
        self._groups, self._most = groups, most_records

    def __call__(self, client: str, request: Request, reply: Reply) -> Reply:
        """The reply, if it is of the kind and form that was asked for; an `InputError` names client and fault."""
        expected = KINDS[type(request)]
        if not isinstance(reply, expected):
            raise InputError(f"reply of client {client!r}", f"must be {expected.__name__}", type(reply).__name__)
        if isinstance(reply, Counts) and isinstance(request, CountsRequest):
            self._counts(client, request, reply)
        elif isinstance(reply, Scores) and isinstance(request, ScoresRequest):
            _scores(client, request, reply)
        elif isinstance(reply, Embeddings) and self._features is not None:
            adder, count = self._features
            adder.check(reply.contribution, self._cells * count, f"features of client {client!r}")
        elif isinstance(reply, Update):
            self._adder.check(reply.contribution, self._size, f"contribution of client {client!r}")
        elif isinstance(reply, Measures) and isinstance(request, MeasureRequest):
            self._measures(client, request, reply)
        elif isinstance(reply, Evaluation):
            self._evaluation(client, reply)
        return reply

    def _counts(self, client: str, request: CountsRequest, reply: Counts) -> None:
        name, cells = f"counts of client {client!r}", np.asarray(reply.cells)
        if cells.shape != (self._cells,) or not np.issubdtype(cells.dtype, np.integer):
            raise InputError(name, f"must be {self._cells} whole numbers", f"{cells.dtype} of shape {cells.shape}")
        everything = [int(reply.records), *(int(count) for count in cells)]
        least = 0 if request.noise is None else -self._most
        if not all(least <= count <= self._most for count in everything):
            raise InputError(name, f"must be between {least} and {self._most}", "others")

    def _measures(self, client: str, request: MeasureRequest, reply: Measures) -> None:
        name, wanted = f"measures of client {client!r}", set(request.quantities)
        if set(reply.values) != wanted:
            raise InputError(name, f"must be {', '.join(sorted(wanted))}", f"{len(reply.values)} others")
        for quantity, values in reply.values.items():
            shape = (self._groups[0], 2, 2) if MEASURED.get(quantity) and self._groups else values.shape
            shape = shape if MEASURED.get(quantity, True) else (1,)
            if values.shape != shape or not np.issubdtype(values.dtype, np.floating):
                raise InputError(f"{quantity} of client {client!r}", f"must be numbers of shape {shape}", values.shape)
            if not (np.abs(values) <= LARGEST).all():  # NaN is not
                raise InputError(f"{quantity} of client {client!r}", "must be finite numbers", "others")

    def _evaluation(self, client: str, reply: Evaluation) -> None:
        name = f"evaluation of client {client!r}"
        found = [np.asarray(table) for table in reply.confusion]
        if self._groups is not None:
            wanted = [(groups, 2, 2) for groups in self._groups]
            if [table.shape for table in found] != wanted:
                raise InputError(name, f"must be tables of the shapes {wanted}", f"{len(found)} others")
        for table in found:
            if not np.issubdtype(table.dtype, np.integer) or not (np.abs(table.astype(float)) <= MOST_RECORDS).all():
                raise InputError(name, f"must be whole numbers up to {MOST_RECORDS}", str(table.dtype))


def _scores(client: str, request: ScoresRequest, reply: Scores) -> None:
    name = f"scores of client {client!r}"
    cells = [np.asarray(cell) for cell in reply.cells]
    wanted = [(int(quota),) for quota in request.quotas]
    found = [cell.shape for cell in cells]
    if request.release is None and len(found) == len(wanted) and all(len(shape) == 1 for shape in found):
        found = [max(few, asked) for few, asked in zip(found, wanted, strict=True)]  # exact scores may be fewer
    if found != wanted:
        raise InputError(name, f"must be {request.quotas.tolist()} numbers for the cells", [c.shape for c in cells])
    if not all(np.issubdtype(cell.dtype, np.floating) and (np.abs(cell) <= LARGEST).all() for cell in cells):
        raise InputError(name, "must be finite numbers", "others")
