"""Programs that take turns."""

from __future__ import annotations

from typing import Any

import pytest

from privfair.engines.batched.lockstep import Ended, Failed, Seat, in_lockstep


def adder(number: int, questions: int) -> Any:
    def program(seat: Seat[int]) -> int:
        return sum(seat.ask((number, i)) for i in range(questions))

    return program


def test_everyone_is_answered_together_and_gets_their_own_answers() -> None:
    asked: list[list[Any]] = []
    ends: dict[int, Ended[int]] = {}

    def answer(questions: list[Any]) -> list[Any]:
        asked.append(questions)
        return [100 * number + i for number, i in questions]

    in_lockstep([adder(n, n) for n in range(4)], answer, ends.__setitem__)
    assert {n: e.result for n, e in ends.items()} == {0: 0, 1: 100, 2: 401, 3: 903}
    assert [len(q) for q in asked] == [3, 2, 1]
    assert list(ends) == [0, 1, 2, 3]  # in the order of their ends


def test_an_error_for_one_is_raised_in_it_and_the_others_go_on() -> None:
    ends: dict[int, Ended[int]] = {}

    def answer(questions: list[Any]) -> list[Any]:
        return [Failed(ValueError("no")) if number == 1 else 1 for number, _ in questions]

    in_lockstep([adder(n, 2) for n in range(3)], answer, ends.__setitem__)
    assert [ends[n].result for n in (0, 2)] == [2, 2]
    assert str(ends[1].error) == "no"


def test_when_answering_fails_all_programs_end() -> None:
    import threading

    before = threading.active_count()

    def answer(questions: list[Any]) -> list[Any]:
        raise KeyError("broken")

    with pytest.raises(KeyError):
        in_lockstep([adder(n, 2) for n in range(3)], answer, lambda n, e: None)
    for thread in threading.enumerate():
        if thread.name == "run":
            thread.join(timeout=5)
    assert threading.active_count() <= before
