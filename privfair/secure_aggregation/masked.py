"""Contributions with masks on them: what a client sends to a sum, what the server makes of it, and how it is opened.

A contribution is the masked vector with its check values, under BFV or with a pad on it, behind an envelope with the
commitment to the client's seed and the seed's shares for the others. The server adds the vectors, takes the left-over
masks off (`MaskingServer.left_over`), and passes on a sum that it cannot read. Clients open it, and check it first.

Some sums are for the server: totals from which it plans. They have masks, and neither pad nor encryption.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.config import Config
from privfair.secure_aggregation.aggregators import (
    ClientAggregator,
    Code,
    ServerAggregator,
    SumOfChunks,
    require_named,
)
from privfair.secure_aggregation.base import ClientKeys, ServerKeys, WordClient, WordServer, check_weight
from privfair.secure_aggregation.ciphertext import (
    NONCE_BYTES,
    UNCODED,
    BadCiphertext,
    Ciphertext,
    Contributor,
    Damaged,
    Forged,
    Header,
    WrongLength,
)
from privfair.secure_aggregation.masking import MaskingHolder
from privfair.secure_aggregation.masks import (
    CHECKS,
    SEAL_BYTES,
    SHARE_BYTES,
    Cohort,
    Federation,
    GroupCode,
    MaskedVector,
    MaskingRefused,
    Words,
    derived,
    to_integers,
    to_words,
)
from privfair.util import FloatArray

SEALED_BYTES = SHARE_BYTES + SEAL_BYTES  # a share of a seed, encrypted for one holder
NumberOf = Callable[[int], int]  # round -> number of the sum
Holders = Mapping[int, MaskingHolder]  # those of this process: all in a simulation, one at a data holder
NO_NONCE = bytes(NONCE_BYTES)  # the number of a sum never repeats: contributions need no number of their own
_MAGIC = b"PFMK"
_ENVELOPE = struct.Struct("<4sB3xQII32s64s")  # version, sum, holder, receivers, commitment, signature
_RECEIVER = struct.Struct(f"<I{SEALED_BYTES}s")
_VERSION, _CHECKSUM, _AGAIN = 1, 16, "Send it again."


# ---- The envelope


def envelope(masked: MaskedVector) -> bytes:
    """All of a masked vector but its values."""
    about = (masked.number, masked.holder, len(masked.sealed), masked.commitment, masked.signature)
    shares = (_RECEIVER.pack(k, masked.sealed[k]) for k in sorted(masked.sealed))
    packed = _ENVELOPE.pack(_MAGIC, _VERSION, *about) + b"".join(shares)
    return packed + hashlib.sha256(packed).digest()[:_CHECKSUM]


def opened_envelope(data: bytes, name: str) -> tuple[MaskedVector, bytes]:
    """What `envelope` wrote, without values, and the bytes behind it; `Damaged` if it is something else."""
    if not isinstance(data, bytes | bytearray | memoryview) or bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise Damaged(name, "must start like a masked vector of privfair", "other bytes", _AGAIN)
    if len(data) < _ENVELOPE.size + _CHECKSUM:
        raise Damaged(name, "must be whole", "cut short in its envelope", _AGAIN)
    _, version, number, holder, receivers, commitment, signature = _ENVELOPE.unpack_from(data)
    end = _ENVELOPE.size + receivers * _RECEIVER.size
    if version != _VERSION or len(data) < end + _CHECKSUM:
        raise Damaged(name, "must be whole, and of this version", f"{len(data)} bytes", _AGAIN)
    if hashlib.sha256(data[:end]).digest()[:_CHECKSUM] != bytes(data[end : end + _CHECKSUM]):
        raise Damaged(name, "must arrive unchanged", "a wrong checksum in its envelope", _AGAIN)
    sealed = dict(_RECEIVER.iter_unpack(data[_ENVELOPE.size : end]))
    if len(sealed) != receivers:
        raise Damaged(name, "must have one share for each receiver", "several for one", _AGAIN)
    return MaskedVector(holder, number, b"", commitment, signature, sealed), data[end + _CHECKSUM :]


# ---- Who masks here


@dataclass(frozen=True)
class Masking:
    """The masks of a run: what everybody knows of them, and the holders that are in this process."""

    federation: Federation
    holders: Holders

    @staticmethod
    def of(federation: Federation, holder: int, identity: Ed25519PrivateKey) -> Masking:
        """At a data holder, which has one private key; the public keys of all are in the plan."""
        return Masking(federation, {holder: MaskingHolder(federation, holder, identity)})

    @staticmethod
    def observer(cohort: Cohort, run: str) -> Masking:
        """For somebody who masks nothing and may open the sums of a run, whose holders are elsewhere."""
        nobody = tuple(secrets.token_bytes(32) for _ in range(cohort.holders))
        return Masking(Federation(cohort, nobody, run), {})

    @staticmethod
    def simulated(cohort: Cohort | None, run: str, config: Config) -> Masking:
        """The masks of all holders in one process, with identities of their own.

        A resumed run has new ones, and a new name: no mask, pad or check value is made twice. On Flower data holders
        mask in processes of their own, and this one opens their sums.
        """
        if cohort is None:
            raise InputError("aggregation.masks", "must be true for masks", False)
        if config.run.engine.startswith("flower"):
            return Masking.observer(cohort, run)
        identities = [Ed25519PrivateKey.generate() for _ in range(cohort.holders)]
        plan = hashlib.sha256(json.dumps(config.as_tables(), sort_keys=True, default=str).encode()).digest()
        public = tuple(key.public_key().public_bytes_raw() for key in identities)
        federation = Federation(cohort, public, f"{run} {secrets.token_hex(8)}", plan)
        return Masking(federation, {k: MaskingHolder(federation, k, key) for k, key in enumerate(identities)})


# ---- A client


def _masked_message(holder: MaskingHolder, number: int, words: Words, keys: ClientKeys, header: Header) -> bytes:
    """The masked words as a message: under the keys, behind their envelope."""
    holder.finish_before(number)
    masked = holder.mask(number, words)
    hidden = np.frombuffer(masked.values, dtype="<u4")
    parts = (hidden[start : start + keys.slots] for start in range(0, len(hidden), keys.slots))
    if isinstance(keys, WordClient):
        chunks = tuple(part.tobytes() for part in parts)
    else:
        chunks = tuple(keys.encrypt_chunk(to_integers(part)) for part in parts)
    return envelope(masked) + Ciphertext(header, chunks).to_bytes()


def _holder(holders: Holders, client: int) -> MaskingHolder:
    if client not in holders:
        raise InputError("client", "must be one that masks here", client)
    return holders[client]


class MaskedClientAggregator(ClientAggregator):
    """A client's side of masked sums: its values in, coded, with check values and masks; the checked sum out.

    Contributions belong to the sum that a round has on this channel, and to the `number`-th sum of the channel, as
    without masks: a sum of an earlier round, or of another channel, is not opened in the place of this one.
    """

    def __init__(
        self,
        keys: ClientKeys,
        fixed_point: Code,
        holders: Holders,
        number_of: NumberOf,
        *,
        run: str,
        channel: str,
        least: int | None = None,
    ) -> None:
        """`run`: a name that no two masking runs share. `number_of`: the number of the sum that a round has here.

        `least`: no sum of fewer is opened; unless given, it is the smallest cohort of the holders here.
        """
        super().__init__(keys, fixed_point, run=run, channel=channel)
        self._holders, self._number_of, self._code = holders, number_of, fixed_point
        self._group_key = derived(keys.tag_secret, b"privfair group key 1")
        self._least = next(iter(holders.values())).federation.cohort.smallest if least is None else least

    def contribute(
        self, values: FloatArray, weight: float, *, client: int = 0, number: int = 0, round_number: int = 0
    ) -> bytes:
        """The message for the server: weight · values with check values, masked, and then padded or encrypted."""
        weight = check_weight(weight)
        values = np.asarray(values, dtype=np.float64).ravel()
        with np.errstate(over="ignore", invalid="ignore"):  # must not raise on data
            words = to_words(self._code.wrapped(values, weight))
        in_run = self._number_of(round_number)
        full = self._group_code(number, len(words)).encode(words, in_run, client)
        header = replace(
            self.keys.header(len(full), weight=weight, encoding=self._coded.encoding),
            round=round_number,
            contributors=(Contributor(client, NO_NONCE),),
        )
        return _masked_message(_holder(self._holders, client), in_run, full, self.keys, header)

    def open(self, total: bytes, name: str = "sum", *, number: int = 0, least: int = 1) -> FloatArray:
        """The weighted sum in the server's message, if it is what the named clients sent; `Forged` otherwise."""
        ciphertext = Ciphertext.from_bytes(total, name)
        header = ciphertext.header
        self.keys.check(header, name)
        self._coded.check(header, name)
        require_named(header, name)
        least = max(least, self._least)
        if header.additions + 1 < least:
            rule = f"must be of at least {least} contributions"
            raise BadCiphertext(name, rule, header.additions + 1, "Each has only a share of the noise.")
        chunks = zip(ciphertext.chunks, self.keys.counts(header.length), strict=True)
        if isinstance(self.keys, WordClient):
            parts = [self.keys.words(chunk, count, name) for chunk, count in chunks]
        else:
            parts = [to_words(self.keys.exact_chunk(chunk, count, name)) for chunk, count in chunks]
        words = np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint32)
        code = self._group_code(number, header.length - CHECKS)
        try:
            opened = code.decode(words, self._number_of(header.round), [one.client for one in header.contributors])
        except MaskingRefused as refused:
            rule = "must be the sum of the contributions that it names, in this run, on this channel, of this round"
            raise Forged(name, rule, "another", "Somebody changed it, or made it up.") from refused
        return self._code.decode(to_integers(opened))

    def _group_code(self, number: int, length: int) -> GroupCode:
        about = f"{self._channel} {number} {self._coded.encoding} {length}"
        return GroupCode(self._group_key, self._run, about, padded=isinstance(self.keys, WordClient))


class TotalsForServer:
    """A client's side of sums that the server opens: whole numbers modulo m, with masks and nothing else.

    Without holders nothing is masked: the same integers, for engines that add them up in the open.
    """

    def __init__(self, holders: Holders | None, number_of: Callable[[str], int] = lambda channel: 0) -> None:
        """The holders of this process; `number_of`: the number of the one sum that a channel has in a run."""
        self._holders, self._keys, self.number_of = holders, WordClient(), number_of

    def contribute(self, values: NDArray[np.int64], *, client: int, number: int) -> bytes:
        """The message of a client for the sum of this number (`sum_number`)."""
        words = to_words(np.asarray(values, dtype=np.int64).ravel())
        header = replace(self._keys.header(len(words)), contributors=(Contributor(client, NO_NONCE),))
        if self._holders is None:
            parts = range(0, len(words), self._keys.slots)
            chunks = tuple(words[i : i + self._keys.slots].astype("<u4").tobytes() for i in parts)
            return Ciphertext(header, chunks).to_bytes()
        return _masked_message(_holder(self._holders, client), number, words, self._keys, header)


# ---- The server


@dataclass(frozen=True)
class Arrived:
    """A masked contribution as the server reads it: its envelope, and the vector, which may be encrypted."""

    masked: MaskedVector
    vector: Ciphertext


class MaskedTotal:
    """The running sum of masked vectors: they are added as they come, and the left-over masks are taken off at the end.

    Memory: the sum and one contribution, whatever the number of contributors.
    """

    def __init__(self, keys: ServerKeys) -> None:
        """Start with nothing."""
        self._keys, self._sum = keys, SumOfChunks(keys)

    def add(self, vector: Ciphertext, name: str) -> None:
        """Add one more; one that is refused leaves the sum as it was."""
        self._sum.add(vector, name)

    @property
    def length(self) -> int:
        """How many values it has."""
        return self._sum.loaded()[0].length

    def masked(self) -> Ciphertext:
        """The sum so far, with its masks."""
        return self._sum.total()

    def total(self, left_over: Words) -> Ciphertext:
        """The sum without the left-over masks."""
        take: Any = self._keys.taken_off  # type: ignore[attr-defined]  # of the schemes that masks are for
        header, chunks = self._sum.loaded()
        starts = range(0, header.length, self._keys.slots)
        pairs = zip(chunks, starts, strict=True)
        without = [take(chunk, left_over[start : start + self._keys.slots]) for chunk, start in pairs]
        return Ciphertext(header, tuple(self._keys.dump_chunk(chunk) for chunk in without))


class MaskedServerAggregator(ServerAggregator):
    """The server's side: it reads masked contributions. They are added where the masks are taken off (`SecureSums`)."""

    def add(self, contributions: object, names: object = None) -> bytes:
        """Masked contributions do not add up by themselves."""
        raise InputError("contributions", "must not be masked to be added here", "masked ones", "Use Server.sums.")

    def read(self, data: bytes, name: str) -> Arrived:
        """A contribution, if it is one of these keys and this code, and both of its halves name the same client."""
        masked, rest = opened_envelope(data, name)
        vector = self._checked(bytes(rest), name)
        require_named(vector.header, name)
        if vector.header.additions or vector.header.contributors != (Contributor(masked.holder, NO_NONCE),):
            raise BadCiphertext(name, "must be a single contribution, of who masked it", "another")
        return Arrived(masked, vector)

    def check(self, contribution: bytes, length: int, name: str) -> None:
        """Raise if this is not a contribution of `length` values; the error says why."""
        found = self.read(contribution, name).vector.header.length - CHECKS
        if found != length:
            raise WrongLength(name, f"must have {length} values", found, "Same model?")

    def require_readable(
        self, contribution: bytes, weight: float, name: str, *, client: int, round_number: int
    ) -> None:
        """Raise unless the contribution can be added, and is the one that was asked for."""
        vector = self.read(contribution, name).vector
        found = (vector.header.contributors[0].client, vector.header.round)
        if found != (client, round_number):
            rule = f"must be of client {client} and round {round_number}"
            raise BadCiphertext(name, rule, f"client {found[0]}, round {found[1]}")
        if not math.isclose(vector.header.weight, weight, rel_tol=1e-12):
            raise BadCiphertext(name, f"must have the weight {weight:g}", vector.header.weight)
        SumOfChunks(self.keys).add(vector, name)


def read_total(data: bytes, name: str) -> Arrived:
    """A masked contribution to a sum that the server opens."""
    masked, rest = opened_envelope(data, name)
    vector = _whole_numbers(bytes(rest), name)
    if vector.header.contributors[0].client != masked.holder:
        raise BadCiphertext(name, "must be of who masked it", "another")
    return Arrived(masked, vector)


def _whole_numbers(data: bytes, name: str) -> Ciphertext:
    """A single vector of whole numbers modulo m."""
    vector = Ciphertext.from_bytes(data, name)
    WordServer().check(vector.header, name)
    require_named(vector.header, name)
    if vector.header.additions or vector.header.encoding != UNCODED:
        raise BadCiphertext(name, "must be a single contribution of whole numbers", "another")
    return vector


def open_totals(contributions: Mapping[int, bytes]) -> NDArray[np.int64]:
    """The integers of a sum whose contributions are not masked."""
    total = SumOfChunks(WordServer())
    for client, data in contributions.items():
        total.add(_whole_numbers(data, f"contribution of client {client}"), f"contribution of client {client}")
    return total_values(total.total())


def total_values(total: Ciphertext) -> NDArray[np.int64]:
    """The integers of a sum that the server opens."""
    return np.asarray(WordClient().decrypt(total), dtype=np.int64)
