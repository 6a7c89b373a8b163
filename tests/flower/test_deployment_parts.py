"""The parts of a deployment that need no federation: certificates, the guard, the holder's command, reported errors."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
from flwr.supernode.runtime import run_clientapp

from accountant.errors import InputError, Refused
from privfair.deployment.flower import guard
from privfair.deployment.flower.federation import link_certificates, node_key
from privfair.deployment.flower.supernode import SuperNode
from privfair.deployment.flower.trial import failure


def test_a_link_certificate_is_signed_by_its_authority_for_loopback_only(tmp_path: Path) -> None:
    files = link_certificates(tmp_path)
    authority, link = (x509.load_pem_x509_certificate(f.read_bytes()) for f in (files.authority, files.certificate))
    link.verify_directly_issued_by(authority)
    names = link.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["127.0.0.1", "localhost"]
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)  # the key is the right one


def test_keys_are_their_owners_alone_and_pairs_belong_together(tmp_path: Path) -> None:
    private = node_key(tmp_path / "keys", "north")
    assert private.stat().st_mode & 0o077 == 0
    public = load_ssh_public_key((tmp_path / "keys" / "north.pub").read_bytes())
    assert load_ssh_private_key(private.read_bytes(), None).public_key() == public
    assert node_key(tmp_path / "keys", "south").read_bytes() != private.read_bytes()


def test_the_guard_stands_before_every_program_a_supernode_may_start(tmp_path: Path) -> None:
    folder = guard.write_guard(tmp_path / "bin", tmp_path / "socket")
    assert {program.name for program in folder.iterdir()} == set(TASK_TYPE_TO_COMMAND.values())
    for program in folder.iterdir():
        if program.name != guard.CLIENT:
            done = subprocess.run([program, "--token", "x"], capture_output=True, text=True, check=False)
            assert done.returncode == 1
            assert f"{program.name} is not run at a data holder" in done.stderr


def test_the_guard_refuses_a_flower_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(run_clientapp, guard.LOADER)
    with pytest.raises(Refused, match="loads apps in another way"):
        guard.main()


def a_holder(folder: Path, **changed: object) -> SuperNode:
    config = folder / "north.toml"
    config.touch()
    given = {
        "superlink": "127.0.0.1:8000",
        "root_certificates": link_certificates(folder).authority,
        "key": node_key(folder, "north"),
        "client": "north",
        "config": config,
        "folder": folder / "state",
    }
    return SuperNode(**(given | changed))  # type: ignore[arg-type]


def test_a_holder_tells_its_node_its_name_its_configuration_and_its_folder(tmp_path: Path) -> None:
    north = a_holder(tmp_path)
    words = north.command()
    reported = f'client="north" config="{tmp_path / "north.toml"}" folder="{tmp_path / "state"}"'
    assert words[words.index("--node-config") + 1] == reported
    assert "--insecure" not in words
    assert north.environment(tmp_path / "socket")["PATH"].startswith(str(tmp_path / "state" / "flower" / "bin"))


def test_a_holder_refuses_what_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="config must be a file; found '/nowhere'"):
        a_holder(tmp_path, config=Path("/nowhere"))
    with pytest.raises(InputError, match="client must hold neither quotes nor backslashes"):
        a_holder(tmp_path, client='north" config="/other')
    readable = node_key(tmp_path, "open")
    readable.chmod(0o644)
    with pytest.raises(InputError, match=re.escape(f"Run chmod 600 {readable}.")):
        a_holder(tmp_path, key=readable)


def test_what_the_server_wrote_about_its_end_comes_back_as_the_same_error(tmp_path: Path) -> None:
    reported = {"kind": "input", "name": "run.clients", "rule": "must be given", "found": None, "remedy": "Name them."}
    (tmp_path / "error.json").write_text(json.dumps(reported))
    error = failure(tmp_path, "finished:failed: x", tmp_path)
    assert isinstance(error, InputError)
    assert str(error) == "run.clients must be given; found None. Name them."
    (tmp_path / "error.json").write_text(json.dumps({"kind": "refused", "message": "Nobody came."}))
    assert str(failure(tmp_path, "finished:failed: x", tmp_path)) == "Nobody came."
    (tmp_path / "error.json").unlink()
    error = failure(tmp_path, "finished:failed: x", tmp_path)
    assert isinstance(error, Refused)
    assert f"(finished:failed: x). What the processes said is in {tmp_path}" in str(error)


FORKED = """
import importlib, os, secrets
from privfair.deployment.flower import warm
for module in warm.MODULES:
    importlib.import_module(module)
from privfair.mechanisms import SystemEntropy
for _ in range(2):
    if os.fork() == 0:
        entropy = SystemEntropy()
        draws = [entropy.discrete_gaussian(1e9, 3), entropy.discrete_laplace(1e9, 3), entropy.normal(3) * 1e9]
        draws += [entropy.permutation(1000)[:3] * 1e6, [secrets.randbits(64)]]
        print(*(repr(float(x)) for drawn in draws for x in drawn), flush=True)
        os._exit(0)
    os.wait()
"""


def test_copies_of_the_warm_process_draw_noise_of_their_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    one, other = (line.split() for line in done.stdout.splitlines())
    assert len(one) == len(other) == 13
    same = [i for i, (x, y) in enumerate(zip(one, other, strict=True)) if x == y]
    # Shared state would make all the same; by chance one of these agrees with probability below 0.01.
    assert len(same) <= 1


def test_a_message_is_handed_to_the_warm_process(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "door"))
        listener.listen()
        program = guard.write_guard(tmp_path / "bin", tmp_path / "door") / guard.CLIENT
        with subprocess.Popen([program, "--token", "a b"]):
            caller, _ = listener.accept()
            with caller:
                assert json.load(caller.makefile("rb")) == ["--token", "a b"]


def test_without_a_warm_process_the_guard_answers_by_itself(tmp_path: Path) -> None:
    program = guard.write_guard(tmp_path / "bin", tmp_path / "nobody") / guard.CLIENT
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Run a Flower ClientApp" in done.stdout
