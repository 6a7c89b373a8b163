"""A data holder's place in a federation: a SuperNode that runs the installed privfair and nothing else.

    python -m privfair.deployment.flower.supernode --superlink HOST:PORT --root-certificates ca.pem \
        --key north_key --client north --config north.toml --folder state

Started again whenever it ends: a SuperLink admits a node that died only after a minute without a sign of life.
"""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from accountant.errors import InputError
from privfair.deployment.flower.guard import write_guard
from privfair.deployment.flower.processes import environment

PAUSE = 5.0  # seconds between two attempts
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class SuperNode:
    """Where the SuperLink is, and what this holder brings."""

    superlink: str
    root_certificates: Path
    key: Path
    client: str
    config: Path
    folder: Path

    def __post_init__(self) -> None:
        """Refuse what cannot work before anything is started."""
        for name, path in (("root certificates", self.root_certificates), ("key", self.key), ("config", self.config)):
            if not path.is_file():
                raise InputError(name, "must be a file", str(path))
        if self.key.stat().st_mode & 0o077:
            raise InputError("key", "must be readable by its owner alone", str(self.key), f"Run chmod 600 {self.key}.")
        for name, text in self.node_config.items():
            if '"' in text or "\\" in text:
                raise InputError(name, "must hold neither quotes nor backslashes", text)

    @property
    def node_config(self) -> dict[str, str]:
        """What the app is told about its place."""
        paths = {"config": str(self.config.resolve()), "folder": str(self.folder.resolve())}
        return {"client": self.client} | paths

    def command(self) -> list[str]:
        """The SuperNode's command line."""
        return [
            str(Path(sys.executable).with_name("flower-supernode")),
            *("--superlink", self.superlink),
            *("--root-certificates", str(self.root_certificates)),
            *("--auth-supernode-private-key", str(self.key)),
            *("--node-config", " ".join(f'{name}="{text}"' for name, text in self.node_config.items())),
            *("--host", LOOPBACK, "--port", str(free_port())),
        ]

    def environment(self, door: Path) -> dict[str, str]:
        """Its environment: a home in the holder's folder, the guard first in the search path."""
        home = self.folder / "flower"
        return environment(home, write_guard(home / "bin", door))


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])


def serve(supernode: SuperNode) -> None:
    """Keep a SuperNode running until this process is told to end (SIGTERM, Ctrl-C)."""
    ended = threading.Event()
    node: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()
        if node is not None:
            node.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    supernode.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what it will hold is its owner's alone
    with tempfile.TemporaryDirectory(prefix="privfair-") as folder:  # a socket's path must be short
        env = supernode.environment(Path(folder) / "socket")
        with _warm(Path(folder) / "socket", env):
            while not ended.is_set():
                node = subprocess.Popen(supernode.command(), env=env)
                if ended.is_set():  # told to end while it was being started
                    node.terminate()
                code = node.wait()
                if not ended.is_set():
                    print(f"privfair: {_reason(code)} Trying again in {PAUSE:g} s.", file=sys.stderr, flush=True)
                    ended.wait(PAUSE)


def _warm(path: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The process that answers at a socket, which takes calls from now on; its input ends with this process."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        words = [sys.executable, "-P", "-m", "privfair.deployment.flower.warm", str(listener.fileno())]
        return subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=dict(env))


def _reason(code: int) -> str:
    return (
        f"the SuperNode ended (code {code}); its words are above. If it was not admitted: either its key is not "
        "registered (flwr supernode register), or it ran until a minute ago and still counts as present."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="A data holder's place in a federation.")
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT", help="where the SuperLink listens")
    parser.add_argument("--root-certificates", required=True, type=Path, help="the authority of its certificate")
    parser.add_argument("--key", required=True, type=Path, help="this node's private key; its .pub is registered")
    parser.add_argument("--client", required=True, help="this holder's name in run.clients")
    parser.add_argument("--config", required=True, type=Path, help="this holder's privfair configuration")
    parser.add_argument("--folder", required=True, type=Path, help="where its state is kept between messages")
    try:
        serve(SuperNode(**vars(parser.parse_args(arguments))))
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
