"""docs/deploy.md, followed to the letter on the loopback address: every command and every file of it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from privfair.deployment.flower.processes import Processes, environment
from privfair.deployment.flower.supernode import free_port
from tests.flower.deployment import eventually, same

GUIDE = Path(__file__).parents[2] / "docs" / "deploy.md"
HOLDERS = ("north", "south")


@dataclass(frozen=True)
class Block:
    """A fenced block: whose it is, what kind, and its lines without the first, which says so."""

    party: str
    note: str
    text: str


def blocks() -> Iterator[Block]:
    for kind, first, text in re.findall(r"```(sh|toml)\n# ([^\n]*)\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        party, _, note = first.partition(": " if kind == "toml" else ", ")
        yield Block(party, note, text)


def parties(block: Block) -> list[str]:
    return list(HOLDERS) if block.party == "every holder" else [block.party]


def test_every_block_says_whose_it_is() -> None:
    found = list(blocks())
    assert GUIDE.read_text().count("\n```sh") + GUIDE.read_text().count("\n```toml") == len(found)
    assert {block.party for block in found} == {"server", "north", "every holder"}


def records(path: Path, seed: int) -> None:
    """A made-up file of 400 applicants."""
    rng = np.random.default_rng(seed)
    lines = ["age,experience,sex,hired"]
    for _ in range(400):
        age, sex = int(rng.integers(20, 65)), rng.choice(["F", "M"])
        experience = int(rng.integers(0, age - 18))
        hired = "yes" if experience + rng.normal(0, 5) > (10 if sex == "M" else 13) else "no"
        lines.append(f"{age},{experience},{sex},{hired}")
    path.write_text("\n".join(lines) + "\n")


class Follower:
    """Does what the guide says, for all parties, with the ports of this test."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self.processes = folder, processes
        self.link, self.gate = free_port(), free_port()
        for number, name in enumerate(("server", *HOLDERS)):
            (folder / name).mkdir()
            if name in HOLDERS:
                records(folder / name / "records.csv", number)

    def here(self, text: str, party: str) -> str:
        """The text as it is for this party on this machine."""
        text = text.replace("fair.example:8443", f"127.0.0.1:{self.gate}").replace("--port 8443", f"--port {self.gate}")
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{self.link}").replace("--port 8000", f"--port {self.link}")
        text = text.replace("/srv/fair", str(self.folder / "server"))
        return text.replace("--host 0.0.0.0", "--host 127.0.0.1").replace("--client north", f"--client {party}")

    def deliver(self) -> None:
        """Bring files to those to whom the guide says they go."""
        server, north = self.folder / "server", self.folder / "north"
        ways = [(north / "keys" / "server.key", server / "server.key")]
        for name in HOLDERS:
            holder = self.folder / name
            ways += [(server / "ca.pem", holder / "ca.pem"), (holder / "node.pub", server / f"{name}.pub")]
            ways += [(north / "keys" / "client.key", holder / "client.key")]
        for source, target in ways:
            if source.exists() and not target.exists():
                shutil.copy(source, target)

    def follow(self, block: Block, party: str) -> str:
        """What the block's commands print; nothing for files and for programs that keep running."""
        self.deliver()
        folder, text = self.folder / party, self.here(block.text, party)
        env = environment(folder / "flower")
        if block.note.endswith(".toml"):
            (folder / block.note).parent.mkdir(exist_ok=True)
            (folder / block.note).write_text(text)
            if party == "north":
                shutil.copy(folder / block.note, self.folder / "south" / block.note)
            return ""
        script = f"cd '{folder}' && set -e\n{text}"
        if block.note == "keeps running":
            self.processes.start(f"{party}-{text.split()[0]}-{text.split()[2][-8:]}", ["sh", "-c", script], env)
            for port in (self.link, self.gate) if party == "server" else ():
                eventually(lambda port=port: f"--port {port}" not in text or self.listens(port))
            return ""
        done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def listens(self, port: int) -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", port)) == 0

    def status(self) -> str:
        words = ["flwr", "ls", "--format", "json"]
        folder = self.folder / "server"
        done = subprocess.run(words, env=environment(folder / "flower"), cwd=folder, capture_output=True, text=True)
        return str(json.loads(done.stdout)["runs"][0]["status"])


@pytest.mark.slow
def test_the_guide_leads_to_a_trained_model_at_every_holder(tmp_path: Path) -> None:
    with Processes(tmp_path / "logs") as processes:
        follower, audits = Follower(tmp_path, processes), 0
        for block in blocks():
            for party in parties(block):
                if "privfair audit" in block.text:
                    eventually(lambda: follower.status().startswith("finished"))
                    audits += 1
                reported = follower.follow(block, party)
                if "privfair audit" in block.text:
                    assert "patients" in reported
        assert follower.status() == "finished:completed"
    metrics = json.loads((tmp_path / "server" / "result" / "metrics.json").read_text())
    assert (metrics["rounds"], metrics["absent"], audits) == (2, [], 2)
    models = [load_file(*(tmp_path / name / "state").glob("*/model.safetensors")) for name in HOLDERS]
    assert same(*models)
    assert not list((tmp_path / "server").rglob("client.key"))
