"""Whether a reply answers its request: checked before it is stored, paid for and used."""

from __future__ import annotations

import numpy as np

from accountant.errors import InputError
from privfair.aggregation import ServerAggregator
from privfair.messages import (
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
    ) -> None:
        """How many cells are counted, and how many numbers a contribution carries.

        `features`: who adds them, and how many a record has; None where none are shared.
        """
        self._adder, self._cells, self._size, self._features = adder, cells, contribution_size, features

    def __call__(self, client: str, request: Request, reply: Reply) -> Reply:
        """The reply, if it is of the kind and form that was asked for; an `InputError` names client and fault."""
        expected = KINDS[type(request)]
        if not isinstance(reply, expected):
            raise InputError(f"reply of client {client!r}", f"must be {expected.__name__}", type(reply).__name__)
        if isinstance(reply, Counts):
            self._counts(client, reply)
        elif isinstance(reply, Scores) and isinstance(request, ScoresRequest):
            _scores(client, request, reply)
        elif isinstance(reply, Embeddings) and self._features is not None:
            adder, count = self._features
            adder.check(reply.contribution, self._cells * count, f"features of client {client!r}")
        elif isinstance(reply, Update):
            self._adder.check(reply.contribution, self._size, f"contribution of client {client!r}")
        return reply

    def _counts(self, client: str, reply: Counts) -> None:
        cells = np.asarray(reply.cells)
        if cells.shape != (self._cells,) or not np.issubdtype(cells.dtype, np.integer):
            raise InputError(f"counts of client {client!r}", f"must be {self._cells} whole numbers", reply.cells)


def _scores(client: str, request: ScoresRequest, reply: Scores) -> None:
    name = f"scores of client {client!r}"
    cells = [np.asarray(cell) for cell in reply.cells]
    wanted = [(int(quota),) for quota in request.quotas]
    found = [cell.shape for cell in cells]
    if request.release is None and len(found) == len(wanted) and all(len(shape) == 1 for shape in found):
        found = [max(few, asked) for few, asked in zip(found, wanted, strict=True)]  # exact scores may be fewer
    if found != wanted:
        raise InputError(name, f"must be {request.quotas.tolist()} numbers for the cells", [c.shape for c in cells])
    if not all(np.issubdtype(cell.dtype, np.floating) and np.isfinite(cell).all() for cell in cells):
        raise InputError(name, "must be finite numbers", "others")
