"""Key pairs for secure aggregation, and their files: a line of format, a line of JSON, the content, a checksum."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from accountant.errors import InputError
from privfair.secure_aggregation.base import (
    ClientKeys,
    GroupClient,
    GroupServer,
    PlainClient,
    PlainFloatClient,
    PlainFloatServer,
    PlainServer,
    ServerKeys,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FIRST_LINE = b"privfair key 1\n"
FILE_NAMES = {"client": "client.key", "server": "server.key"}
IDENTITY = "identity.key"
_DIGEST = 32
_AGAIN = "Copy it again from where it was made."
KeyRole = Literal["client", "server", "identity"]


@dataclass(frozen=True)
class KeyFile:
    """The content of a key file."""

    role: KeyRole
    scheme: str
    key_id: str
    parts: dict[str, bytes]

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        sizes = {name: len(part) for name, part in self.parts.items()}
        about = {"role": self.role, "scheme": self.scheme, "key_id": self.key_id, "parts": sizes}
        content = FIRST_LINE + json.dumps(about).encode() + b"\n" + b"".join(self.parts.values())
        return content + hashlib.sha256(content).digest()

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> KeyFile:
        """What `to_bytes` wrote; an `InputError` with the file's name otherwise."""
        if not data.startswith(FIRST_LINE):
            raise InputError(name, "must be a key file of privfair", "other content", "Make one: privfair keys new DIR")
        content, digest = data[:-_DIGEST], data[-_DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            raise InputError(name, "must be whole and unchanged", "a wrong checksum", _AGAIN)
        line, _, rest = content[len(FIRST_LINE) :].partition(b"\n")
        about = json.loads(line)
        parts, start = {}, 0
        for part, size in about["parts"].items():
            parts[part] = rest[start : start + size]
            start += size
        return cls(about["role"], about["scheme"], about["key_id"], parts)


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that did not exist, with this mode from its first moment; refuse to overwrite."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise InputError("key file", "must not exist yet", str(path), "Name another directory.") from None
    except OSError as error:
        raise InputError("key file", "must be writable", str(path), f"{error.strerror}.") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def role_of(path: Path) -> KeyRole:
    """Whether a file is a client key or a server key, by its content."""
    name = f"key {path}"
    return KeyFile.from_bytes(_open(path, name)[0], name).role


def read(path: Path, role: KeyRole) -> KeyFile:
    """The key file of this role: the path itself, or the file of that role in a directory."""
    path = path / {**FILE_NAMES, "identity": IDENTITY}[role] if path.is_dir() else path
    name = f"{role} key {path}"
    data, mode = _open(path, name)
    found = KeyFile.from_bytes(data, name)
    # By the content, not the file's name: a secret is a secret under any name.
    if found.role != "server" and mode & 0o077:
        rule = "must be readable by its owner only (mode 0600)"
        raise InputError(name, rule, f"{mode:04o}", f"Others may have copied it. If not: chmod 600 {path}")
    if found.role != role:
        remedy = f"Use {FILE_NAMES.get(role, IDENTITY)}." + (
            " The server must never hold client.key: it opens every contribution." if role == "server" else ""
        )
        raise InputError(name, f"must be a {role} key", f"a {found.role} key", remedy)
    return found


def _open(path: Path, name: str) -> tuple[bytes, int]:
    try:
        with path.open("rb") as file:
            # the mode of what was opened, not of what is there a moment later
            return file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        remedy = "Make one: privfair keys new DIR"
        raise InputError(name, "must be a file that can be read", error.strerror, remedy) from None


ENCRYPTED = ("bfv", "ckks")
KEYED = (*ENCRYPTED, "masked")
GROUP_KEY_WARNING = (
    "All clients share this key: it hides sums from the server, and finds sums that the server changed. Whoever has it "
    "besides the clients sees the sums; single contributions stay hidden by masks."
)
SINGLE_KEY_WARNING = (
    "All clients share one key. The server with one client, or a client that can read traffic, opens individual "
    "ciphertexts; with two clients each knows the other's delta; then the noise of that client alone is what remains."
)


@dataclass(frozen=True)
class KeyPair:
    """The keys of all clients and those of the server."""

    client: ClientKeys
    server: ServerKeys
    _files: tuple[KeyFile, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Refuse two halves that were not made together."""
        ids = [f"{keys.scheme} {keys.key_id[:8]}…" for keys in (self.client, self.server)]
        if (self.client.scheme, self.client.key_id) != (self.server.scheme, self.server.key_id):
            raise InputError("server key", f"must match the client key {ids[0]}", ids[1], "Use two made together.")

    def save(self, directory: Path | str) -> Path:
        """Write client.key (mode 0600), server.key and about.json into a directory; nothing is overwritten."""
        if not self._files:
            raise InputError("keys", "must be of a scheme with keys to be saved", self.client.scheme)
        directory = Path(directory)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError("directory", "must be one, or possible to make", str(directory), f"{error}.") from None
        for name in (*FILE_NAMES.values(), "about.json"):
            if (directory / name).exists():
                raise InputError("key file", "must not exist yet", str(directory / name), "Name another directory.")
        for file in self._files:
            write_new(directory / FILE_NAMES[file.role], file.to_bytes(), 0o600 if file.role == "client" else 0o644)
        about = {
            "scheme": self.client.scheme,
            "key_id": self.client.key_id,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "client.key": "secret: to every client, to nobody else, mode 0600",
            "server.key": "public: to the server",
            "warning": key_warning(self.client.scheme),
        }
        write_new(directory / "about.json", (json.dumps(about, indent=2) + "\n").encode(), 0o644)
        return directory


def key_warning(scheme: str) -> str:
    """What whoever makes keys of a scheme must know."""
    return GROUP_KEY_WARNING if scheme == "masked" else SINGLE_KEY_WARNING


def new_keys(scheme: str) -> KeyPair:
    """A fresh key pair of "bfv", "ckks" or "masked"."""
    if scheme not in KEYED:
        raise InputError("scheme", f"must be one of {', '.join(KEYED)}", scheme, "plain needs no keys.")
    if scheme == "masked":
        # the server's part is only an id: there is nothing that it could use
        public = secrets.token_bytes(32)
        parts = {"public": public, "group": secrets.token_bytes(32)}
        client_file = KeyFile("client", scheme, _fingerprint(public), parts)
        server_file = KeyFile("server", scheme, _fingerprint(public), {"public": public})
        return KeyPair(_client(client_file), _server(server_file), (client_file, server_file))
    from privfair.secure_aggregation import tenseal as seal

    context = seal.new_context(seal.BFV if scheme == "bfv" else seal.CKKS)
    public, secret = seal.context_bytes(context, secret=False), seal.context_bytes(context, secret=True)
    key_id = _fingerprint(public)
    parts = {"public": public, "context": secret}
    if scheme == "ckks":
        parts["flooding"] = secrets.token_bytes(seal.SECRET_BYTES)
    client_file = KeyFile("client", scheme, key_id, parts)
    server_file = KeyFile("server", scheme, key_id, {"public": public})
    return KeyPair(_client(client_file), _server(server_file), (client_file, server_file))


def plain_keys(*, quantise: bool) -> KeyPair:
    """The pair that encrypts nothing: on integers, or on floats."""
    return KeyPair(PlainClient(), PlainServer()) if quantise else KeyPair(PlainFloatClient(), PlainFloatServer())


# ---- Long-term keys with which a data holder signs what masks are made of: everybody's plan has the public halves.


def new_identity(directory: Path | str) -> str:
    """Write a new identity.key (mode 0600) into a directory; what comes back is its public half, for the plan."""
    directory, secret = Path(directory), secrets.token_bytes(32)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("directory", "must be one, or possible to make", str(directory), f"{error}.") from None
    public = _public_half(secret)
    file = KeyFile("identity", "ed25519", public.hex(), {"secret": secret})
    write_new(directory / IDENTITY, file.to_bytes(), 0o600)
    return public.hex()


def load_identity(path: Path | str) -> Ed25519PrivateKey:
    """A data holder's own signing key; refused when others can read the file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    file = read(Path(path), "identity")
    if file.scheme != "ed25519" or _public_half(file.parts["secret"]).hex() != file.key_id:
        raise InputError(f"identity key {path}", "must be an Ed25519 key with its public half", "others", _AGAIN)
    return Ed25519PrivateKey.from_private_bytes(file.parts["secret"])


def _public_half(secret: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def load_client(path: Path | str) -> ClientKeys:
    """The client keys in a directory or file; refused when others can read the file."""
    return _client(read(Path(path), "client"))


def load_server(path: Path | str) -> ServerKeys:
    """The server keys in a directory or file."""
    return _server(read(Path(path), "server"))


def _client(file: KeyFile) -> ClientKeys:
    _check(file)
    if file.scheme == "masked":
        return GroupClient(file.parts["group"], file.key_id)
    from privfair.secure_aggregation.tenseal import BfvClient, CkksClient

    if file.scheme == "bfv":
        return BfvClient(file.parts["context"], file.key_id)
    return CkksClient(file.parts["context"], file.key_id, file.parts["flooding"])


def _server(file: KeyFile) -> ServerKeys:
    _check(file)
    if file.scheme == "masked":
        return GroupServer(file.key_id)
    from privfair.secure_aggregation.tenseal import BfvServer, CkksServer

    return (BfvServer if file.scheme == "bfv" else CkksServer)(file.parts["public"], file.key_id)


def _check(file: KeyFile) -> None:
    if file.scheme not in KEYED:
        raise InputError("key's scheme", f"must be one of {', '.join(KEYED)}", file.scheme)
    if _fingerprint(file.parts["public"]) != file.key_id:
        raise InputError("key", "must match its fingerprint", "another public key", "Make new keys for everybody.")


def _fingerprint(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()[:32]
