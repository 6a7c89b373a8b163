"""Key files: a line that tells what it is, a line of JSON, the content, a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from accountant.errors import InputError

FIRST_LINE = b"privfair key 1\n"
FILE_NAMES = {"client": "client.key", "server": "server.key"}
_DIGEST = 32
_AGAIN = "Copy it again from where it was made."
KeyRole = Literal["client", "server"]


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
    path = path / FILE_NAMES[role] if path.is_dir() else path
    name = f"{role} key {path}"
    data, mode = _open(path, name)
    found = KeyFile.from_bytes(data, name)
    # By the content, not the file's name: a secret is a secret under any name.
    if found.role == "client" and mode & 0o077:
        rule = "must be readable by its owner only (mode 0600)"
        raise InputError(name, rule, f"{mode:04o}", f"Others may have copied it. If not: chmod 600 {path}")
    if found.role != role:
        remedy = f"Use {FILE_NAMES[role]}." + (
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
