"""Lines of the history for many runs at once: the models' outputs and, for the energy kernel, MMD² are batched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.datasets.records import Federation
from privfair.engines.batched.lockstep import Failed
from privfair.engines.batched.networks import Networks, rows_at_once
from privfair.engines.evaluation import Evaluator, Row
from privfair.fairness.metrics import Predicted, penalty_mmd2
from privfair.fairness.notions import Cells
from privfair.kernels.base import Kernel
from privfair.kernels.families import EnergyKernel
from privfair.models import FlatModel
from privfair.util import FloatArray


@dataclass(frozen=True)
class Evaluate:
    """A question: one line of the history of one run."""

    evaluator: StackedEvaluator
    parameters: FloatArray
    round: int


class StackedEvaluator(Evaluator):
    """As `Evaluator`, with pooled records that runs share, and lines that are asked for with those of other runs."""

    def __init__(
        self,
        federation: Federation,
        cells: Cells,
        kernel: Kernel,
        strength: float,
        model: FlatModel,
        ask: Callable[[Evaluate], Row],
        pooled: dict[tuple[int, torch.dtype], Evaluator],
    ) -> None:
        """`pooled` remembers the evaluators whose records can be shared."""
        like = pooled.get((id(federation), model.flat.dtype))
        if like is None:
            super().__init__(federation, cells, kernel, strength, model)
            pooled[id(federation), model.flat.dtype] = self
        else:
            self.schema = like.schema
            self.cells, self.kernel, self.strength, self.model = cells, kernel, strength, model
            self.task, self.parts, self.tensors, self._scaling = like.task, like.parts, like.tensors, like._scaling
        self._ask = ask

    def row(self, round_number: int) -> Row:
        """One line of the history, under the model's present parameters."""
        return self._ask(Evaluate(self, self.model.parameters(), round_number))


def evaluate(
    questions: Sequence[Evaluate], networks: Networks, each: Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
) -> list[Row | Failed]:
    """The line of each question; `each` maps a function over parts of the work."""
    rows: list[Row | Failed] = [Failed(RuntimeError("not evaluated"))] * len(questions)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, question in enumerate(questions):
        e = question.evaluator
        network = networks.of(e.model, e.tensors["train"][0].shape[1])
        alone = None if network is not None else number
        kernel = type(e.kernel) if isinstance(e.kernel, EnergyKernel) else None
        key = (id(e.tensors["train"][0]), network and network.key, alone, kernel, e.cells.notion.score)
        groups.setdefault((*key, e.cells.comparisons, e.cells.notion.name), []).append(number)
    parts = []
    for members in groups.values():
        e = questions[members[0]].evaluator
        network = networks.of(e.model, e.tensors["train"][0].shape[1])
        records = max(1, *(len(e.parts[part]) for part in ("train", "test")))
        width = 1 if network is None else network.width
        at_once = max(1, 4 * rows_at_once(width) // records)
        parts += [members[i : i + at_once] for i in range(0, len(members), at_once)]
    for part, lines in zip(parts, each(lambda p: _lines([questions[n] for n in p], networks), parts), strict=True):
        for number, line in zip(part, lines, strict=True):
            rows[number] = line
    return rows


def _lines(questions: Sequence[Evaluate], networks: Networks) -> list[Row | Failed]:
    """Of questions on the same records with the same cells and the same form of model."""
    rows: list[Row] = [{"round": q.round} for q in questions]
    first = questions[0].evaluator
    errors: dict[int, Failed] = {}
    for part, records in first.parts.items():
        if not len(records):
            continue
        x, y = first.tensors[part]
        outputs = _outputs(questions, x, networks)
        losses = first.task.losses(outputs, y.expand_as(outputs)).numpy().astype(np.float64)
        predictions = first.task.predictions(outputs).numpy().astype(np.float64)
        scores = first.task.scores(outputs, y.expand_as(outputs), first.cells.notion.score).numpy()
        batched = None
        if isinstance(first.kernel, EnergyKernel):
            batched = energy_mmd2(scores, first.cells, first.cells.membership(records))
        for n, (question, row) in enumerate(zip(questions, rows, strict=True)):
            predicted = Predicted(records, predictions[n], losses[n], scores[n].astype(np.float64))
            e = question.evaluator
            try:
                mmd2 = penalty_mmd2(predicted, e.cells, e.kernel) if batched is None else float(batched[n])
                row |= e.figures(part, predicted, mmd2, question.round)
            except InputError as error:
                errors.setdefault(n, Failed(error))
    return [errors.get(n, row) for n, row in enumerate(rows)]


def _outputs(questions: Sequence[Evaluate], x: torch.Tensor, networks: Networks) -> torch.Tensor:
    """(runs, records)."""
    first = questions[0].evaluator
    network = networks.of(first.model, x.shape[1])
    if network is None:
        first.model.load(questions[0].parameters)
        return first.model.evaluate(x)[None]
    parameters = torch.from_numpy(np.stack([q.parameters for q in questions]))
    return network.outputs(parameters, x.expand(len(questions), *x.shape))


def energy_mmd2(scores: FloatArray, cells: Cells, member: NDArray[np.bool_]) -> FloatArray:
    """(runs,): Σ over pairs of groups of ∫(F₀ − F₁)², which is MMD² with the energy kernel, by one sort for all."""
    order = np.argsort(scores, axis=1)
    steps = np.diff(np.take_along_axis(scores, order, axis=1).astype(np.float64), axis=1)
    total = np.zeros(len(scores))
    sizes = member.sum(axis=0)
    for comparison in cells.comparisons:
        present = [c for c in comparison.cells if sizes[c]]
        for first, second in combinations(present, 2):
            weights = member[:, first] / sizes[first] - member[:, second] / sizes[second]
            apart = np.cumsum(weights[order], axis=1)[:, :-1]
            total += np.einsum("ri,ri,ri->r", apart, apart, steps)
    return total
