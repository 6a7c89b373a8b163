"""Key pairs for encrypted aggregation: made together, kept apart."""

from __future__ import annotations

import datetime
import hashlib
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from accountant.errors import InputError
from privfair.aggregation.base import ClientKeys, ServerKeys
from privfair.aggregation.key_files import FILE_NAMES, KeyFile, read, write_new
from privfair.aggregation.plain import PlainClient, PlainFloatClient, PlainFloatServer, PlainServer

ENCRYPTED = ("bfv", "ckks")
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
            raise InputError("keys", "must be of an encrypted scheme to be saved", self.client.scheme)
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
            "warning": SINGLE_KEY_WARNING,
        }
        write_new(directory / "about.json", (json.dumps(about, indent=2) + "\n").encode(), 0o644)
        return directory


def new_keys(scheme: str) -> KeyPair:
    """A fresh key pair of "bfv" or "ckks"."""
    if scheme not in ENCRYPTED:
        raise InputError("scheme", f"must be one of {', '.join(ENCRYPTED)}", scheme, "plain needs no keys.")
    from privfair.aggregation import seal

    if scheme == "bfv":
        from privfair.aggregation.bfv import PARAMETERS
    else:
        from privfair.aggregation.ckks import PARAMETERS
    context = seal.new_context(PARAMETERS)
    public, secret = seal.context_bytes(context, secret=False), seal.context_bytes(context, secret=True)
    key_id = _fingerprint(public)
    parts = {"public": public, "context": secret}
    if scheme == "ckks":
        from privfair.aggregation.flooding import SECRET_BYTES

        parts["flooding"] = secrets.token_bytes(SECRET_BYTES)
    client_file = KeyFile("client", scheme, key_id, parts)
    server_file = KeyFile("server", scheme, key_id, {"public": public})
    return KeyPair(_client(client_file), _server(server_file), (client_file, server_file))


def plain_keys(*, quantise: bool) -> KeyPair:
    """The pair that encrypts nothing: on integers, or on floats."""
    return KeyPair(PlainClient(), PlainServer()) if quantise else KeyPair(PlainFloatClient(), PlainFloatServer())


def load_client(path: Path | str) -> ClientKeys:
    """The client keys in a directory or file; refused when others can read the file."""
    return _client(read(Path(path), "client"))


def load_server(path: Path | str) -> ServerKeys:
    """The server keys in a directory or file."""
    return _server(read(Path(path), "server"))


def _client(file: KeyFile) -> ClientKeys:
    _check(file)
    if file.scheme == "bfv":
        from privfair.aggregation.bfv import BfvClient

        return BfvClient(file.parts["context"], file.key_id)
    from privfair.aggregation.ckks import CkksClient

    return CkksClient(file.parts["context"], file.key_id, file.parts["flooding"])


def _server(file: KeyFile) -> ServerKeys:
    _check(file)
    if file.scheme == "bfv":
        from privfair.aggregation.bfv import BfvServer

        return BfvServer(file.parts["public"], file.key_id)
    from privfair.aggregation.ckks import CkksServer

    return CkksServer(file.parts["public"], file.key_id)


def _check(file: KeyFile) -> None:
    if file.scheme not in ENCRYPTED:
        raise InputError("key's scheme", f"must be one of {', '.join(ENCRYPTED)}", file.scheme)
    if _fingerprint(file.parts["public"]) != file.key_id:
        raise InputError("key", "must match its fingerprint", "another public key", "Make new keys for everybody.")


def _fingerprint(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()[:32]
