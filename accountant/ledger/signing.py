"""The owner's key: signatures on ledger rows and fingerprints of data.

Signatures are HMAC-SHA256 (RFC 2104), from the standard library. Whoever can check one can also make one, so
the key belongs to whoever answers for the ledger, not to the programs' operators. A public-key signature
(Ed25519) would let strangers check; it would also take about a hundred times as long per row, minutes for an
audit of a million rows, and one more compiled dependency. One key serves both purposes through two derived
keys, so that a fingerprint can never be mistaken for a signature.

A fingerprint is HMAC-SHA256 over the records: a budget follows the data, not the name somebody gives it. It is keyed
because an unkeyed hash of a small dataset can be guessed by trying candidates, which would make the ledger itself a
release. It does not depend on the order of records or columns, nor on writing 1 as 1.0 or 0 as -0, nor on a byte order
mark, so that saving a file anew does not open a second budget. It starts with the name of its key, and a ledger takes
fingerprints of one key only.

Not seen through: real changes. One altered record, one more or one less, a column added, dropped or RENAMED gives
another fingerprint (the names decide the order of the columns, so they are part of it). Whoever answers for the data
has to register a changed table under its old name, with `renew`; the fingerprint finds honest mistakes.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from accountant.delimited import read_delimited
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


def fingerprint_columns(columns: Mapping[str, Iterable[object]], key: OwnerKey) -> str:
    """The fingerprint of a table given as columns of equal length (a dict, or a data frame)."""
    names = sorted(str(name) for name in columns)
    by_name = {str(name): list(columns[name]) for name in columns}
    lengths = {name: len(values) for name, values in by_name.items()}
    if len(by_name) != len(list(columns)):
        raise InputError("columns", "must have different names", list(columns))
    if not lengths or len(set(lengths.values())) != 1:
        raise InputError("columns", "must all have the same number of records", lengths)
    return _fingerprint(names, zip(*(by_name[name] for name in names), strict=True), key)


def fingerprint_csv(
    path: str | Path, key: OwnerKey, *, delimiter: str = ",", quote: str = '"', encoding: str = "utf-8"
) -> str:
    """The fingerprint of a CSV file with a header line; the same as of its columns.

    The file is read as for training (`accountant.delimited`): what cannot be read exactly has no fingerprint.
    """
    table = read_delimited(Path(path), delimiter=delimiter, quote=quote, encoding=encoding)
    values = zip(*table.records, strict=True) if table.records else ((),) * len(table.header)
    return fingerprint_columns(dict(zip(table.header, values, strict=True)), key)


def key_of(fingerprint: str) -> str:
    """The name of the key that a fingerprint was made with; "" when it does not say."""
    return fingerprint.rpartition("-")[0]


def canonical_cell(value: object) -> str:
    """One value as text: numbers as the shortest decimal that reads back equal; missing values empty."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    text = str(value).strip()
    if value is None or text in ("", "nan", "NaN", "<NA>", "NaT", "None"):
        return ""
    try:
        number = float(text)
    except ValueError:
        return text
    # Adding 0.0 turns -0.0 into 0.0.
    # Whole numbers beyond 2**53 (identifiers, for instance) would collapse into one float.
    return repr(number + 0.0) if math.isfinite(number) and abs(number) <= 2**53 else text


def _fingerprint(names: list[str], records: Iterable[tuple[object, ...]], key: OwnerKey) -> str:
    secret = key.fingerprinting
    digests = sorted(
        hmac.digest(secret, _framed(canonical_cell(value) for value in record), "sha256") for record in records
    )
    digest = hmac.digest(secret, b"table" + _framed(names) + b"".join(digests), "sha256").hex()
    return f"{key.key_id}-{digest}"


def _framed(texts: Iterable[str]) -> bytes:
    """The texts, each preceded by its length, so that ("ab", "c") and ("a", "bc") differ."""
    encoded = (text.encode("utf-8", "surrogatepass") for text in texts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
