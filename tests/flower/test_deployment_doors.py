"""Who gets in: nodes with a registered key and the right authority, holders' calls only, and no code from elsewhere."""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Iterator

import httpx
import pytest

from accountant.errors import Refused
from privfair.deployment.flower.federation import LINK, Node, link_certificates, node_key
from privfair.deployment.flower.processes import environment
from privfair.deployment.flower.supernode import free_port
from tests.flower.deployment import Federation, Trial, eventually, trial

pytestmark = pytest.mark.slow

FOREIGN = """
[project]
name = "foreign"
version = "0.1.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "foreign:server"
clientapp = "foreign:client"
"""
FOREIGN_CODE = """
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
client = ClientApp()
server = ServerApp()
FOLDER = Path({folder!r})

@client.query()
def read(message, context):
    (FOLDER / "stolen").write_text(context.node_config["config"])
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    (node,) = grid.get_node_ids()
    replies = list(grid.send_and_receive([Message(RecordDict(), node, "query")]))
    (FOLDER / "answer").write_text(repr([r.error if r.has_error() else "done" for r in replies]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return trial(tmp_path_factory.mktemp("doors"))


@pytest.fixture(scope="module")
def federation(made: Trial) -> Iterator[Federation]:
    with Federation(made.logs) as federation:
        yield federation


def test_a_key_that_nobody_registered_is_not_admitted(federation: Federation, made: Trial) -> None:
    stranger = federation.start_node(made.node("client-2"), node_key(made.folder / "strange", "key"))
    log = made.logs / f"{federation.log_name('client-2')}.log"
    eventually(lambda: "Failed to activate SuperNode" in log.read_text())
    eventually(lambda: "either its key is not registered" in log.read_text())
    assert federation.nodes() == 0
    federation.processes.end(stranger)


def test_a_superlink_of_another_authority_is_not_believed(federation: Federation, made: Trial) -> None:
    other = link_certificates(made.folder / "other").authority
    known, federation.certificates = federation.certificates, type(federation.certificates)(other, other, other)
    try:
        node = federation.start_node(made.node("client-3"), node_key(made.folder / "strange", "third"))
    finally:
        federation.certificates = known
    log = made.logs / f"{federation.log_name('client-3')}.log"
    eventually(lambda: re.search("handshake|certificate verify failed", log.read_text(), re.IGNORECASE))
    federation.processes.end(node)


def test_the_gate_lets_holders_through_and_nobody_else(federation: Federation, made: Trial) -> None:
    files, port = federation.certificates, free_port()
    command = [sys.executable, "-P", "-m", "privfair.deployment.flower.gate", "--link", federation.address]
    command += ["--root-certificates", str(files.authority), "--port", str(port)]
    command += ["--certificate", str(files.certificate), "--key", str(files.key)]
    gate = federation.processes.start("gate", command, environment(made.folder))
    trust = ssl.create_default_context(cafile=str(files.authority))
    with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trust) as caller:

        def call(client: httpx.Client, path: str) -> int:
            try:
                return client.post(path, headers={"content-type": "application/protobuf"}).status_code
            except httpx.TransportError:
                return 0

        eventually(lambda: call(caller, "/v1/control/list-runs"))
        refused = ("control/list-runs", "control/start-run", "control/register-node", "runtime/acquire-task", "../docs")
        assert {call(caller, f"/v1/{path}") for path in (*refused, "fleet/register-node")} == {404}
        with httpx.Client(base_url=f"https://{federation.address}", verify=trust) as direct:
            assert call(direct, "/v1/control/list-runs") == 200  # which is why there is a gate
    inside, federation.port = federation.port, port
    try:
        key = node_key(made.folder / "strange", "first")
        federation.keys["client-1"] = key
        node = federation.start_node(made.node("client-1"))
    finally:
        federation.port = inside
    federation.ask("supernode", "register", f"{key}.pub", LINK)
    eventually(lambda: federation.nodes() == 1)  # through the gate, once it is registered
    federation.processes.end(node, gate)
    eventually(lambda: federation.nodes() == 0)


def test_code_that_comes_with_a_message_does_not_run_at_a_holder(federation: Federation, made: Trial) -> None:
    node = federation.admit(made.node("client-1"))
    eventually(lambda: federation.nodes() == 1)
    app = made.folder / "foreign"
    app.mkdir()
    (app / "pyproject.toml").write_text(FOREIGN)
    (app / "foreign.py").write_text(FOREIGN_CODE.format(folder=str(made.folder)))
    federation.ask("run", str(app), LINK)
    eventually((made.folder / "answer").exists)
    assert "done" not in (made.folder / "answer").read_text()
    assert not (made.folder / "stolen").exists()
    federation.processes.end(node)


def test_a_process_that_ends_by_itself_is_told_with_its_last_words(federation: Federation, made: Trial) -> None:
    broken = Node("client-2", made.folder / "no such file.toml", made.folder / "client-2" / "state")
    node = federation.start_node(broken, node_key(made.folder / "strange", "second"))
    node.wait()
    with pytest.raises(Refused, match="config must be a file"):
        federation.check()
    federation.processes.kill(node)
    federation.check()
