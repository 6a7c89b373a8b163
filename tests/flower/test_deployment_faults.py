"""Nodes that die, come late or dawdle, a SuperLink and a server that are started again, replies that are garbage.

What is waited for is always an event (a row in a ledger, a node that is present), never a time.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from privfair.deployment.flower.processes import environment
from privfair.deployment.flower.supernode import SuperNode
from privfair.deployment.flower.trial import wait
from tests.flower.deployment import Federation, Step, Trial, finish, in_order, paid, releases, same, spent, trial

pytestmark = pytest.mark.slow
FAR = 30.0  # seconds for an answer where somebody is silent for good


def has_paid(made: Trial, name: str, channel: str, number: int) -> Callable[[], bool]:
    return lambda: paid(made, name)[channel, number] > 0


def no_release_was_made_twice(made: Trial) -> None:
    """Every release was paid for once, or once more after a crash lost it, as planned; the books are intact."""
    for name in made.names:
        found = paid(made, name)
        assert all(times == 1 for times in found.values()), (name, found)


def test_a_node_that_dies_in_a_round_is_left_out_and_its_return_is_welcome(tmp_path: Path) -> None:
    made = trial(tmp_path, changes={"run": {"deadline": FAR}, "federation": {"rounds": 4, "lagged_scores": True}})
    with Federation(made.logs) as federation:
        nodes = {node.client: federation.admit(node) for node in made.nodes}

        def die_and_return() -> None:
            federation.processes.kill(nodes["client-2"])
            federation.start_node(made.node("client-2"))  # refused until the SuperLink has noticed, then admitted

        metrics = finish(federation, made, in_order(Step(has_paid(made, "client-2", "updates", 0), die_and_return)))
        absent = {absence["client"] for absence in metrics["absent"] if absence["round"] is not None}
        assert "client-2" in absent
        assert "Trying again" in made.log("client-2")
        assert metrics["rounds"] == 4
        assert same(made.model("client-1"), made.model("client-3"))
    no_release_was_made_twice(made)
    for name in made.names:
        assert spent(made, name) <= metrics["privacy"]["planned"]["rdp"]


def test_a_late_node_takes_part_from_the_next_round_and_has_the_same_model(tmp_path: Path) -> None:
    made = trial(tmp_path, changes={"run": {"min_clients": 2}, "federation": {"rounds": 3}})
    with Federation(made.logs) as federation:
        first, _ = (federation.admit(node) for node in made.nodes[:2])

        def begin_to_wait() -> None:
            os.killpg(first.pid, signal.SIGSTOP)  # holds the round until the late one is there
            federation.admit(made.node("client-3"))

        steps = in_order(
            Step(has_paid(made, "client-1", "predictions", 0), begin_to_wait),
            Step(lambda: federation.nodes() == 3, lambda: os.killpg(first.pid, signal.SIGCONT)),
        )
        metrics = finish(federation, made, steps)
    absent = [(absence["round"], absence["client"]) for absence in metrics["absent"]]
    assert (0, "client-3") in absent
    assert (2, "client-3") not in absent
    assert releases(made, "client-3")["updates", 2] == 1
    assert metrics["clients"]["client-3"]["released"] > 0
    for name in made.names:
        assert same(made.model(name), made.model("client-1"))
        assert spent(made, name) <= metrics["privacy"]["planned"]["rdp"]
    no_release_was_made_twice(made)


def test_a_slow_node_misses_the_deadline_and_the_round_goes_on(tmp_path: Path) -> None:
    made = trial(tmp_path, changes={"run": {"deadline": FAR}})
    with Federation(made.logs) as federation:
        nodes = {node.client: federation.admit(node) for node in made.nodes}
        slow = nodes["client-2"].pid
        metrics = finish(
            federation,
            made,
            in_order(
                Step(has_paid(made, "client-2", "predictions", 0), lambda: os.killpg(slow, signal.SIGSTOP)),
                Step(has_paid(made, "client-1", "predictions", 1), lambda: os.killpg(slow, signal.SIGCONT)),
            ),
        )
    reasons = [absence["reason"] for absence in metrics["absent"] if absence["client"] == "client-2"]
    assert any(f"did not answer within {FAR:.0f} s" in reason for reason in reasons)
    assert metrics["rounds"] == 2
    assert same(made.model("client-1"), made.model("client-3"))
    no_release_was_made_twice(made)


def test_a_superlink_and_then_a_server_started_again_lose_nothing(tmp_path: Path) -> None:
    made = trial(tmp_path)
    with Federation(made.logs) as federation:
        for node in made.nodes:
            federation.admit(node)

        def link_again() -> None:
            federation.processes.kill(federation.link)
            federation.start_link()

        class ServerKilled(Exception):
            pass

        def server_dies() -> None:
            federation.processes.kill(federation.executor)  # and with it the server's app
            federation.start_executor()
            raise ServerKilled

        run = federation.submit(made.server, made.out)
        steps = in_order(
            Step(has_paid(made, "client-1", "predictions", 0), link_again),
            Step(has_paid(made, "client-3", "updates", 0), server_dies),
        )
        with pytest.raises(ServerKilled):
            wait(federation, run, made.out, steps)
        metrics = finish(federation, made)  # in the same folder: it goes on where it was
    assert metrics["rounds"] == 2
    assert metrics["absent"] == []
    for name in made.names:
        assert same(made.model(name), made.model("client-1"))
        assert set(releases(made, name)) >= {("updates", 0), ("updates", 1)}
        assert spent(made, name) <= metrics["privacy"]["planned"]["rdp"]
    no_release_was_made_twice(made)


def test_with_masks_a_killed_holder_and_a_killed_server_cost_no_sum(tmp_path: Path) -> None:
    """Three holders, all of whom every sum needs; one dies and comes back, then the server's app does."""
    changes = {
        "aggregation": {"scheme": "masked", "masks": True},
        "fairness": {"tracker": "embedding"},
        "privacy": {"epsilon": 3.0, "prediction_rate": None},
        "federation": {"rounds": 3},
    }
    made = trial(tmp_path, changes=changes)
    with Federation(made.logs) as federation:
        nodes = {node.client: federation.admit(node) for node in made.nodes}

        class ServerKilled(Exception):
            pass

        def holder_dies() -> None:
            federation.processes.kill(nodes["client-2"])
            federation.start_node(made.node("client-2"))

        def server_dies() -> None:
            federation.processes.kill(federation.executor)  # and with it the server's app
            federation.start_executor()
            raise ServerKilled

        run = federation.submit(made.server, made.out)
        steps = in_order(
            Step(has_paid(made, "client-2", "embeddings", 1), holder_dies),  # they leave with the updates of round 0
            Step(has_paid(made, "client-3", "embeddings", 2), server_dies),
        )
        with pytest.raises(ServerKilled):
            wait(federation, run, made.out, steps)
        metrics = finish(federation, made)  # in the same folder: it goes on where it was
    assert metrics["rounds"] == 3
    for name in made.names:
        assert same(made.model(name), made.model("client-1"))
        assert spent(made, name) <= metrics["privacy"]["planned"]["rdp"]
    no_release_was_made_twice(made)


ROGUE = """
import sys
from flwr.app import Message
from flwr.clientapp import ClientApp
from privfair.deployment.flower import client_app, guard
from privfair.deployment.flower.link import unwrap, wrap

app = ClientApp()

@app.query(client_app.ACTION)
def answer(message, context):
    asked, reply = unwrap(message), client_app._answer(message, context)
    if asked["kind"] == "order" and reply["kind"] == "answer" and b"Train" in asked["request"][0]:
        reply["replies"] = [b"garbage" for _ in reply["replies"]]
        print("sent garbage", flush=True)
    return Message(wrap(reply), reply_to=message)

guard._installed = lambda **_: lambda *_: app
guard.main()
"""


def rogue(federation: Federation, made: Trial, name: str) -> subprocess.Popen[bytes]:
    """An admitted node whose updates are garbage: it is its owner who decides what runs there."""
    federation.processes.end(federation.admit(made.node(name)))  # signs off: its place is free at once
    folder = made.folder / name / "rogue"
    folder.mkdir()
    (folder / "rogue.py").write_text(ROGUE)
    program = folder / "flwr-clientapp"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(folder / "rogue.py")])} "$@"\n')
    program.chmod(0o755)
    node = made.node(name)
    command = SuperNode(
        superlink=federation.address,
        root_certificates=federation.certificates.authority,
        key=federation.keys[name],
        client=name,
        config=node.config,
        folder=node.folder,
    ).command()
    return federation.processes.start(federation.log_name(name), command, environment(folder, folder))


def test_garbage_is_left_out_and_the_round_goes_on(tmp_path: Path) -> None:
    made = trial(tmp_path)
    with Federation(made.logs) as federation:
        for node in made.nodes[:2]:
            federation.admit(node)
        rogue(federation, made, "client-3")
        metrics = finish(federation, made)
    assert "sent garbage" in made.log("client-3")
    absent = [(absence["round"], absence["client"]) for absence in metrics["absent"]]
    assert absent == [(0, "client-3"), (1, "client-3")]
    assert all("could not be" in absence["reason"] for absence in metrics["absent"])
    assert same(made.model("client-1"), made.model("client-2"))
    no_release_was_made_twice(made)
