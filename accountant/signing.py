"""The owner's key: signatures on ledger rows and fingerprints of data.

Signatures are HMAC-SHA256 (RFC 2104), from the standard library. Whoever can check one can also make one, so
the key belongs to whoever answers for the books, not to the programs' operators. A public-key signature
(Ed25519) would let strangers check; it would also take about a hundred times as long per row, minutes for an
audit of a million rows, and one more compiled dependency. One key serves both purposes through two derived
keys, so that a fingerprint can never be mistaken for a signature.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from accountant.errors import InputError

KEY_BYTES = 32


@dataclass(frozen=True)
class OwnerKey:
    """A secret of at least 32 bytes; never printed."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a secret that could be guessed by length alone."""
        if len(self.secret) < KEY_BYTES:
            raise InputError(
                "key", f"must have at least {KEY_BYTES} bytes", len(self.secret), "Use OwnerKey.create(path)."
            )

    @classmethod
    def create(cls, path: str | Path) -> OwnerKey:
        """A new random key, written to a file that only its owner may read. Never overwrites."""
        key = cls(secrets.token_bytes(KEY_BYTES))
        try:
            # The mode is given at creation, so that the key is at no moment readable by others.
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError("key file", "must not exist yet", str(path), "A lost key cannot be made again.") from None
        except OSError as error:
            raise InputError("key file", "must be writable", str(path), str(error)) from None
        with os.fdopen(handle, "w") as file:
            file.write(key.secret.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        return key

    @classmethod
    def load(cls, path: str | Path) -> OwnerKey:
        """The key in a file, if nobody but its owner can read the file; otherwise `InputError`."""
        try:
            with open(path) as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("key file", "must be a readable text file", str(path), str(error)) from None
        if os.name == "posix" and mode & 0o077:
            raise InputError("key file", "must have mode 600", f"{mode:o}", f"Run: chmod 600 {path}")
        try:
            return cls(bytes.fromhex(text.strip()))
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            # The content stays out of the message: it may be a secret.
            raise InputError("key file", "must hold hexadecimal digits", str(path)) from None

    @property
    def key_id(self) -> str:
        """Sixteen hexadecimal digits that name the key without giving it away."""
        return hmac.digest(self._derived(b"name"), b"", "sha256").hex()[:16]

    def sign(self, text: str) -> str:
        """The signature of a text, hexadecimal."""
        return hmac.digest(self._signing, text.encode(), "sha256").hex()

    def signed(self, text: str, signature: str) -> bool:
        """Whether this key made the signature."""
        return hmac.compare_digest(self.sign(text).encode(), signature.encode())

    @property
    def fingerprinting(self) -> bytes:
        """The derived key for fingerprints of data."""
        return self._derived(b"fingerprint")

    @cached_property
    def _signing(self) -> bytes:
        return self._derived(b"signature")

    def _derived(self, purpose: bytes) -> bytes:
        return hmac.digest(self.secret, b"accountant ledger: " + purpose, hashlib.sha256)
