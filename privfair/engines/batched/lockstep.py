"""Many ordinary programs that take turns: each runs until it asks; when all ask, all are answered together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Cancelled(BaseException):
    """What a program gets instead of an answer when the whole is given up."""


@dataclass(frozen=True)
class Failed:
    """An answer that is an error: it is raised where the question was asked."""

    error: BaseException


@dataclass(frozen=True)
class Ended(Generic[T]):
    """How a program ended: with a result, or with an error."""

    result: T | None
    error: Exception | None


class Seat(Generic[T]):
    """One program in a thread of its own. Only one thread of all runs at any time, so nothing needs a lock.

    A thread and not a generator: the programs are whole training runs, written without a thought of taking turns.
    A turn costs about 20 µs.
    """

    def __init__(self, program: Callable[[Seat[T]], T]) -> None:
        """Start it up to its first line."""
        self._program = program
        self._turn, self._back = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        self._answer: Any = None
        self.question: Any = None
        self.ended: Ended[T] | None = None
        threading.Thread(target=self._run, daemon=True, name="run").start()

    def ask(self, question: Any) -> Any:
        """The answer; called by the program itself. Others run in the meantime."""
        self.question = question
        self._back.release()
        self._turn.acquire()
        self.question = None
        if isinstance(self._answer, Failed):
            raise self._answer.error
        return self._answer

    def resume(self, answer: Any = None) -> None:
        """Give it its answer and wait until it asks again or ends; called by the answering side."""
        self._answer = answer
        self._turn.release()
        self._back.acquire()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if isinstance(self._answer, Failed):
                raise self._answer.error
            self.ended = Ended(self._program(self), None)
        except Exception as error:  # noqa: BLE001 - `Ended` carries it to the caller
            self.ended = Ended(None, error)
        except Cancelled:
            self.ended = Ended(None, RuntimeError("given up"))
        finally:
            self._back.release()


def in_lockstep(
    programs: Sequence[Callable[[Seat[T]], T]],
    answer: Callable[[list[Any]], list[Any]],
    ended: Callable[[int, Ended[T]], None],
) -> None:
    """Run all programs; `answer` gets the questions of all that are still running, `ended` each end as it happens.

    An answer of kind `Failed` is raised in the program that asked, and the others go on.
    """
    seats = {number: Seat(program) for number, program in enumerate(programs)}
    try:
        for number in list(seats):
            _advance(seats, number, None, ended)
        while seats:
            asking = list(seats)
            for number, reply in zip(asking, answer([seats[n].question for n in asking]), strict=True):
                _advance(seats, number, reply, ended)
    finally:
        for seat in seats.values():  # only after an error of the answering side: let the threads end
            seat.resume(Failed(Cancelled()))


def _advance(seats: dict[int, Seat[T]], number: int, reply: Any, ended: Callable[[int, Ended[T]], None]) -> None:
    seat = seats[number]
    seat.resume(reply)
    if seat.ended is not None:
        del seats[number]
        ended(number, seat.ended)


def attempt(work: Callable[..., T], *about: Any) -> T | Failed:
    """What `work` gives, or its error as a value: it belongs to one program, and the others go on."""
    try:
        return work(*about)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is raised again in its own program
        return Failed(error)
