"""Certificates of a SuperLink and key pairs of SuperNodes, for a trial on one machine.

They last a day. A real deployment brings its own (docs/deploy.md).
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from accountant.errors import InputError, Refused
from privfair.deployment.flower.processes import Processes, environment
from privfair.deployment.flower.supernode import free_port

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LinkCertificates:
    """Where the files of a SuperLink are."""

    authority: Path
    certificate: Path
    key: Path


def link_certificates(folder: Path) -> LinkCertificates:
    """A certificate for the loopback address and the authority that signed it; the authority's key is not kept."""
    authority_key, link_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "privfair trial")])
    authority = (
        _unsigned(issuer, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.IPAddress(ipaddress.ip_address(LOOPBACK)), x509.DNSName("localhost")]
    link = (
        _unsigned(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")]), issuer, link_key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = link_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return LinkCertificates(
        _write(folder / "ca.pem", authority.public_bytes(Encoding.PEM)),
        _write(folder / "link.pem", link.public_bytes(Encoding.PEM)),
        _write(folder / "link.key", private),
    )


def node_key(folder: Path, name: str) -> Path:
    """The private key of a SuperNode, its public half beside it with the ending .pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(folder / f"{name}.pub", public + b"\n")
    return _write(folder / name, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))


def _unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _write(path: Path, content: bytes) -> Path:
    """Written for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    return path


# ---- The processes of a federation on this machine, and what can be asked of them.


LINK = "trial"  # the name of the SuperLink in the commands' own configuration
START = 120.0  # seconds a SuperLink may take to listen on a busy machine
APP: dict[str, Any] = {
    # The app that is sent is a shell: both sides run the installed package.
    "project": {"name": "privfair-app", "version": "0.1.0", "license": "Apache-2.0", "dependencies": []},
    "tool": {
        "flwr": {
            "app": {
                "publisher": "privfair",
                "components": {
                    "serverapp": "privfair.deployment.flower.server_app:app",
                    "clientapp": "privfair.deployment.flower.client_app:app",
                },
                "config": {"config": "", "out": ""},
            }
        }
    },
}


@dataclass(frozen=True)
class Node:
    """A data holder of a trial: its name, its configuration, the folder for its state."""

    client: str
    config: Path
    folder: Path


class Federation:
    """A SuperLink with TLS and node authentication, and the SuperNodes admitted to it.

    The server's app is no child of the SuperLink, so that a SuperLink that is started again finds it still running.
    """

    def __init__(self, logs: Path) -> None:
        """`logs`: a folder for what the processes print."""
        self.logs = logs
        self.processes = Processes(logs)
        self.port = free_port()
        self.keys: dict[str, Path] = {}
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}  # what must not end by itself, and its log
        self._stack = ExitStack()

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{LOOPBACK}:{self.port}"

    def __enter__(self) -> Self:
        """Start the SuperLink and the program that runs the server's app."""
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="privfair-flower-")))
            stack.enter_context(self.processes)
            self._write_files()
            self.start_link()
            self.start_executor()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything and remove the keys."""
        self._stack.close()

    def _write_files(self) -> None:
        self.certificates = link_certificates(self.folder)
        connection = {"address": self.address, "root-certificates": str(self.certificates.authority)}
        (self.folder / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": LINK, LINK: connection}}))
        (self.folder / "secret").write_bytes(secrets.token_bytes(32))
        (self.folder / "app").mkdir()
        (self.folder / "app" / "pyproject.toml").write_text(tomli_w.dumps(APP))

    def _environment(self) -> dict[str, str]:
        return environment(self.folder)

    def start_link(self) -> None:
        """Start the SuperLink, or start it again with what it knew; return when it listens."""
        files = self.certificates
        command = [program("flower-superlink"), "--host", LOOPBACK, "--port", str(self.port)]
        command += ["--ssl-ca-certfile", str(files.authority), "--ssl-certfile", str(files.certificate)]
        command += ["--ssl-keyfile", str(files.key), "--enable-supernode-auth"]
        command += ["--database", str(self.folder / "state.sqlite"), "--disable-runtime-dependency-installation"]
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(self.folder / "secret")]
        self.link = self._start("link", command)
        limit = time.monotonic() + START
        while not self._listens():
            self.check()
            if time.monotonic() > limit:
                raise Refused(f"The SuperLink did not start within {START:g} s. What it said is in {self.logs}.")
            time.sleep(0.1)

    def start_executor(self) -> None:
        """Start the program that runs the server's app."""
        command = [program("flower-superexec"), "--runtime-api-address", self.address]
        command += ["--root-certificates", str(self.certificates.authority)]
        command += ["--superexec-auth-secret-file", str(self.folder / "secret")]
        self.executor = self._start("executor", command)

    def _listens(self) -> bool:
        with socket.socket() as caller:
            return caller.connect_ex((LOOPBACK, self.port)) == 0

    def check(self) -> None:
        """`Refused` when one of the processes has ended by itself: none of them does unless something is wrong."""
        for process, name in self._names.items():
            if process in self.processes.running and self.processes.running[process].poll() is not None:
                last = (self.logs / f"{name}.log").read_text(errors="replace").strip().splitlines()[-5:]
                raise Refused(f"The process {name!r} has ended. Its last words: " + " ".join(last))

    def admit(self, node: Node) -> subprocess.Popen[bytes]:
        """Register a new key for a data holder and start its SuperNode."""
        key = self.keys[node.client] = node_key(self.folder / "keys", f"{len(self.keys)}")
        self.ask("supernode", "register", str(key.with_name(key.name + ".pub")), LINK)
        return self.start_node(node, key)

    def start_node(self, node: Node, key: Path | None = None) -> subprocess.Popen[bytes]:
        """Start the SuperNode of a data holder, again with the key it had when none is given."""
        command = [sys.executable, "-P", "-m", "privfair.deployment.flower.supernode", "--superlink", self.address]
        command += ["--root-certificates", str(self.certificates.authority)]
        command += ["--key", str(key or self.keys[node.client]), "--client", node.client]
        command += ["--config", str(node.config), "--folder", str(node.folder)]
        return self._start(self.log_name(node.client), command)

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        process = self.processes.start(name, command, self._environment())
        self._names[process.pid] = name
        return process

    def log_name(self, client: str) -> str:
        """The name of a data holder's log: by its number, since its name may hold what a file name cannot."""
        return f"node-{self._numbers.setdefault(client, len(self._numbers)):03d}"

    def nodes(self) -> int:
        """How many SuperNodes are present."""
        return sum(node["status"] == "online" for node in self.ask("supernode", "list", LINK)["nodes"])

    def submit(self, config: Path, out: Path) -> str:
        """Start a run of the app; what comes back is its number."""
        values = {"config": str(config.resolve()), "out": str(out.resolve())}
        (self.folder / "run.toml").write_text(tomli_w.dumps(values))
        answer = self.ask("run", str(self.folder / "app"), LINK, "--run-config", str(self.folder / "run.toml"))
        return str(answer["run-id"])

    def follow(self, run: str) -> subprocess.Popen[bytes]:
        """A process that writes what the server's app says into server.log, and ends with the run."""
        (self.logs / "server.log").unlink(missing_ok=True)
        return self.processes.start("server", [program("flwr"), "log", run, LINK, "--stream"], self._environment())

    def status(self, run: str) -> tuple[str, str]:
        """Where a run is, and Flower's words about it."""
        (about,) = self.ask("ls", LINK, "--run-id", run)["runs"]
        return str(about["status"]), str(about["status-details"])

    def ask(self, *words: str) -> dict[str, Any]:
        """The answer of a `flwr` command."""
        command = [program("flwr"), *words, "--format", "json"]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = {"success": False, "error-message": (done.stdout + done.stderr).strip()}
        if not answer.get("success"):
            raise Refused(f"`flwr {' '.join(words)}` failed: {answer.get('error-message', 'no reason given')}")
        return answer


def program(name: str) -> str:
    """The path of one of Flower's programs, beside this interpreter."""
    path = Path(sys.executable).with_name(name)
    if not path.is_file():
        raise InputError("flwr", "must be installed", f"no {name} beside {sys.executable}", "pip install flwr>=1.41")
    return str(path)
