"""What a round of training uses: clients contribute and open, the server adds, whatever the scheme."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.secure_aggregation.base import (
    WEIGHT_SLACK,
    ClientKeys,
    FixedPoint,
    Joined,
    Role,
    ServerKeys,
    Vector,
    WholeNumbers,
    check_weight,
)
from privfair.secure_aggregation.ciphertext import (
    UNCODED,
    BadCiphertext,
    Ciphertext,
    Contributor,
    Forged,
    Header,
    TagKey,
    TooMany,
    WrongEncoding,
    WrongLength,
)
from privfair.secure_aggregation.keys import ENCRYPTED, KeyPair, plain_keys
from privfair.util import FloatArray


class SumOfChunks:
    """A running sum over contributions in the order in which they come.

    Memory: the sum and one contribution, whatever the number of contributors. A contribution that is refused
    leaves the sum as it was.
    """

    def __init__(self, keys: ServerKeys) -> None:
        """Start with nothing."""
        self._keys = keys
        self._header: Header | None = None
        self._chunks: list[Any] = []

    def add(self, contribution: Ciphertext, name: str = "contribution") -> None:
        """Add one more; nothing is changed before every chunk of it has proved readable."""
        keys, header = self._keys, contribution.header
        if self._header is None:
            keys.check(header, name)
            total = header
        else:
            total = keys.sum_header(self._header, header, name)
        counts = keys.counts(header.length)
        loaded = [keys.load_chunk(c, n, name) for c, n in zip(contribution.chunks, counts, strict=True)]
        if self._header is None:
            self._chunks = loaded
        else:
            self._chunks = [keys.add_chunk(a, b) for a, b in zip(self._chunks, loaded, strict=True)]
        self._header = total

    def loaded(self) -> tuple[Header, list[Any]]:
        """The sum so far in the form that can be added, with its header."""
        if self._header is None:
            raise InputError("contributions", "must be at least one", 0, "No client has sent anything to add.")
        return self._header, self._chunks

    def total(self) -> Ciphertext:
        """The encrypted sum so far."""
        header, chunks = self.loaded()
        return Ciphertext(header, tuple(self._keys.dump_chunk(chunk) for chunk in chunks))


Code = FixedPoint | WholeNumbers | Joined
# What was checked when it came is not read and checked again when it is added: of small models that is a good part of a
# simulation. Large messages are read again, because what was read would take as much memory as they do.
SMALL, MOST_KNOWN = 1 << 16, 1 << 12


class _Coded:
    """The check both sides make: numbers in this code, and no more of them than it has room for."""

    def __init__(self, keys: Role, fixed_point: Code | None) -> None:
        if (fixed_point is None) != (keys.modulus is None):
            rule = "must be given unless the scheme is plain float64"
            raise InputError("fixed_point", rule, fixed_point, f"The scheme is {keys.scheme}.")
        if fixed_point is not None and keys.modulus is not None and fixed_point.modulus > keys.modulus:
            rule = f"must be at most {keys.modulus} for {keys.scheme}"
            raise InputError("fixed_point.modulus", rule, fixed_point.modulus, "Use MODULI[scheme].")
        if fixed_point is not None and fixed_point.contributors > keys.max_additions + 1:
            rule = f"must be at most {keys.max_additions + 1} for {keys.scheme}"
            raise InputError("fixed_point.contributors", rule, fixed_point.contributors)
        self.keys, self.fixed_point = keys, fixed_point
        self.encoding = UNCODED if fixed_point is None else fixed_point.fingerprint

    def check(self, header: Header, name: str) -> None:
        if header.encoding != self.encoding:
            remedy = "Give everybody the same range, weight_sum and contributors."
            raise WrongEncoding(name, f"must be coded as {self.encoding}", header.encoding, remedy)
        if self.keys.tagging is not None:
            require_named(header, name)
        if self.fixed_point is None:
            return
        most = self.fixed_point.contributors
        if header.additions + 1 > most:
            remedy = "Make the fixed point for more contributors."
            raise TooMany(name, f"must sum at most {most} contributions", header.additions + 1, remedy)
        if header.weight > self.fixed_point.weight_sum * (1 + WEIGHT_SLACK):
            rule = f"must have weights that sum to at most {self.fixed_point.weight_sum:g}"
            raise TooMany(name, rule, header.weight, "Make the fixed point for a larger weight_sum.")


def require_named(header: Header, name: str) -> None:
    """Raise if the header does not name each of its contributions, all of different clients."""
    named, rule = header.contributors, "must name each of its contributions"
    if not named:
        remedy = "It was made by an earlier version of privfair: start a new run, with the same version everywhere."
        raise BadCiphertext(name, rule, "none named", remedy)
    if len(named) != header.additions + 1:
        raise BadCiphertext(name, rule, f"{len(named)} named of {header.additions + 1}", "Send it again.")
    if len({one.client for one in named}) != len(named):
        raise BadCiphertext(name, "must have at most one contribution of each client", "several of one", "")


def _data_length(keys: Role, header: Header) -> int:
    """How many values a vector has beside its tags."""
    return header.length - (0 if keys.tagging is None else keys.tagging.width * header.chunks)


class ClientAggregator:
    """A client's side: its weighted values in, encrypted; the sum of everybody's out.

    Contributions are bound to one sum, the one of a `number` on a channel of a run, and only such a sum is opened.
    """

    def __init__(self, keys: ClientKeys, fixed_point: Code | None, *, run: str = "", channel: str = "") -> None:
        """Take the keys, and the code everybody uses (None: plain float64)."""
        self.keys = keys
        self._coded = _Coded(keys, fixed_point)
        self._run, self._channel = run, channel

    @property
    def noise(self) -> float:
        """Standard deviation of the noise that opening adds to each value of a sum; 0 except for CKKS."""
        code = self._coded.fixed_point
        return 0.0 if code is None else self.keys.noise / code.scale

    def contribute(
        self, values: FloatArray, weight: float, *, client: int = 0, number: int = 0, round_number: int = 0
    ) -> bytes:
        """The message for the server: weight · values, encrypted, with tags that bind it to client, sum and round.

        Its number of chunks depends on the number of values only. TenSEAL compresses each ciphertext, so the bytes
        vary a little with the randomness of encryption; a ciphertext looks random whatever is in it.
        """
        weight = check_weight(weight)
        values = np.asarray(values, dtype=np.float64).ravel()
        code = self._coded.fixed_point
        with np.errstate(over="ignore", invalid="ignore"):  # must not raise on data
            numbers = values * weight if code is None else _integers(self.keys, code, values, weight)
        if self.keys.tagging is None:
            return self.keys.encrypt(numbers, weight=weight, encoding=self._coded.encoding).to_bytes()
        contributor = Contributor.new(client)
        key = self._tag_key(number, round_number, len(numbers))
        tagged = key.tagged(numbers.astype(np.int64), self.keys.slots, contributor)
        made = self.keys.encrypt(tagged, weight=weight, encoding=self._coded.encoding)
        header = replace(made.header, round=round_number, contributors=(contributor,))
        return Ciphertext(header, made.chunks).to_bytes()

    def open(self, total: bytes, name: str = "sum", *, number: int = 0, least: int = 1) -> FloatArray:
        """The weighted sum in the server's message: that of this number, of at least `least` contributions.

        Where there are tags, every chunk is checked against them before any of it is returned.
        """
        ciphertext = Ciphertext.from_bytes(total, name)
        self.keys.check(ciphertext.header, name)  # first: another key explains more than another code
        self._coded.check(ciphertext.header, name)
        if ciphertext.header.additions + 1 < least:
            rule = f"must be of at least {least} contributions"
            raise BadCiphertext(name, rule, ciphertext.header.additions + 1, "Each has only a share of the noise.")
        numbers = (
            self.keys.decrypt(ciphertext, name) if not self.keys.tagging else self._checked(ciphertext, name, number)
        )
        code = self._coded.fixed_point
        return cast(FloatArray, numbers) if code is None else code.decode(numbers)

    def _checked(self, total: Ciphertext, name: str, number: int) -> Vector:
        """The values of a sum whose every chunk has the tags of the contributions that its header names."""
        keys, header = self.keys, total.header
        if keys.tagging is None:
            raise TypeError("the plain scheme has no tags")
        width = keys.tagging.width
        tag_key = self._tag_key(number, header.round, _data_length(keys, header))
        parts, genuine = [], True
        for i, (chunk, count) in enumerate(zip(total.chunks, keys.counts(header.length), strict=True)):
            exact = keys.exact_chunk(chunk, count, name)
            genuine &= count > width and tag_key.holds(i, exact, header.contributors)
            parts.append(keys.released(exact[:-width], chunk))
        if not genuine:  # do not say which chunk: the forger would learn from that
            rule = "must be the sum of the contributions that it names, in this run, on this channel, of this round"
            raise Forged(name, rule, "another", "Somebody changed it, or it was made under another run or round.")
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def _tag_key(self, number: int, round_number: int, length: int) -> TagKey:
        if self.keys.tagging is None:
            raise TypeError("the plain scheme has no tags")
        about = (self._run, self._channel, number, round_number, self._coded.encoding, length)
        return TagKey(self.keys.tag_secret, self.keys.tagging, about)


class ServerAggregator:
    """The server's side: encrypted contributions in, their encrypted sum out."""

    def __init__(self, keys: ServerKeys, fixed_point: Code | None) -> None:
        """Take the public half of the keys, and the code everybody uses (None: plain float64)."""
        self.keys = keys
        self._coded = _Coded(keys, fixed_point)
        self._known: dict[int, tuple[bytes, Ciphertext]] = {}  # small messages that `check` has read, by their id

    def add(self, contributions: Iterable[bytes], names: Sequence[str] | None = None) -> bytes:
        """The message for all clients. Contributions are taken one at a time; an error names the one at fault."""
        total = SumOfChunks(self.keys)
        for name, data in _named(contributions, names):
            total.add(self._checked(data, name), name)
            del data  # before the next one is made or received
        self._known.clear()
        result = total.total()
        self._coded.check(result.header, "sum of the contributions")
        return result.to_bytes()

    def check(self, contribution: bytes, length: int, name: str) -> None:
        """Raise if this is not a contribution of `length` values; the error says why."""
        read = self._checked(contribution, name)
        found = _data_length(self.keys, read.header)
        if found != length:
            raise WrongLength(name, f"must have {length} values", found, "Same model?")
        if type(contribution) is bytes and len(contribution) <= SMALL and len(self._known) < MOST_KNOWN:
            self._known[id(contribution)] = (contribution, read)

    def require_readable(
        self, contribution: bytes, weight: float, name: str, *, client: int, round_number: int
    ) -> None:
        """Raise the error that `add` would raise for this contribution, or if it is not the one that was asked for.

        For contributions from other machines: a damaged one is dropped, and the sum of the others goes on.
        """
        ciphertext = self._checked(contribution, name)
        header = ciphertext.header
        if header.additions:
            raise BadCiphertext(name, "must be a single contribution", f"{header.additions + 1} of them")
        if self.keys.tagging is None and (header.contributors or header.round):
            raise BadCiphertext(name, "must be as plain contributions are", "one with names")
        if self.keys.tagging is not None and (header.contributors[0].client, header.round) != (client, round_number):
            found = f"client {header.contributors[0].client}, round {header.round}"
            raise BadCiphertext(name, f"must be of client {client} and round {round_number}", found)
        if not math.isclose(ciphertext.header.weight, weight, rel_tol=1e-12):
            raise BadCiphertext(name, f"must have the weight {weight:g}", ciphertext.header.weight)
        SumOfChunks(self.keys).add(ciphertext, name)

    def _checked(self, data: bytes, name: str) -> Ciphertext:
        known = self._known.get(id(data))
        if known is not None and known[0] is data:
            return known[1]
        contribution = Ciphertext.from_bytes(data, name)
        self.keys.check(contribution.header, name)
        self._coded.check(contribution.header, name)
        return contribution


# ---- The sums of a run, by channel. With masks they are `privfair.federated.secure_sums.SecureSums`.


@dataclass(frozen=True)
class Summed:
    """A sum that clients open, and whose contributions are in it."""

    total: bytes
    members: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Totals:
    """A sum that the server opened, of whole numbers modulo m, and whose contributions are in it."""

    values: NDArray[np.int64]
    members: tuple[int, ...]


class Sums:
    """Adds contributions by channel. `ask`: how to ask clients, which sums with masks need.

    ready: who can contribute to a sum. add: the sum for clients. totals: the sum for the server. None of them raises
    where clients are absent: they give less, and `notes` says why.
    """

    smallest = 1  # no sum of fewer clients opens
    masked = False  # whether contributions are masked
    terms = b""  # digest of what sums are made under, once it is agreed on; masks are bound to it

    def __init__(self, adders: Mapping[str, ServerAggregator]) -> None:
        """`adders`: who adds the contributions of a channel."""
        self.adders = dict(adders)

    def ready(self, channel: str, round_number: int | None, clients: Sequence[int], ask: Any) -> list[int]:
        """Those of the clients that can contribute to this sum; nobody, where too few of them can."""
        return list(clients)

    def lost(self, channel: str, round_number: int | None) -> bool:
        """Whether this sum can never open, so that a run goes on without it."""
        return False

    def named(self, channel: str, round_number: int | None) -> bool:
        """Whether it is settled already whose contributions are in this sum."""
        return False

    def add(
        self, channel: str, round_number: int | None, contributions: Mapping[int, bytes], ask: Any
    ) -> Summed | None:
        """The sum of the contributions, for clients to open; None if nothing opens it."""
        names = [f"client {k}" for k in contributions]
        return Summed(self.adders[channel].add(contributions.values(), names=names), tuple(contributions))

    def totals(
        self, channel: str, round_number: int | None, contributions: Mapping[int, bytes], ask: Any
    ) -> Totals | None:
        """The sum of whole numbers (`TotalsForServer.contribute`) as the server may see it; None if nothing opens it.

        It has the integers of least magnitude modulo m.
        """
        from privfair.secure_aggregation.masked import open_totals

        return Totals(open_totals(contributions), tuple(contributions)) if contributions else None

    def notes(self) -> Sequence[Any]:
        """Who was left out of which sum since the last call, and why: `Absence`s."""
        return ()


def _integers(keys: Role, code: Code, values: FloatArray, weight: float) -> Vector:
    """What is added up: cut so that the sum stays exact, or, where sums are modulo m, the remainders."""
    return code.wrapped(values, weight) if keys.wraps else code.encode(values, weight)


def aggregators(
    scheme: str, keys: KeyPair | None, *, fixed_point: Code | None, run: str = "", channel: str = ""
) -> tuple[ClientAggregator, ServerAggregator]:
    """Both sides of a scheme: "bfv" and "ckks" with keys; "plain" without, on floats if there is no fixed point."""
    if scheme == "plain":
        if keys is not None:
            raise InputError("keys", "must not be given for scheme plain", keys.client.scheme)
        keys = plain_keys(quantise=fixed_point is not None)
    elif scheme not in ENCRYPTED:
        raise InputError("scheme", f"must be one of {', '.join((*ENCRYPTED, 'plain'))}", scheme)
    elif keys is None:
        raise InputError("keys", f"must be given for scheme {scheme}", keys, "Make some: privfair keys new DIR")
    elif keys.client.scheme != scheme:
        raise InputError("keys", f"must be of scheme {scheme}", keys.client.scheme, "Make some for this scheme.")
    client = ClientAggregator(keys.client, fixed_point, run=run, channel=channel)
    return client, ServerAggregator(keys.server, fixed_point)


def _named(contributions: Iterable[bytes], names: Sequence[str] | None) -> Iterator[tuple[str, bytes]]:
    index = -1
    for index, data in enumerate(contributions):
        if names is not None and index >= len(names):
            raise InputError("names", "must be as many as contributions", len(names))
        yield f"contribution of {names[index]}" if names is not None else f"contribution {index + 1}", data
    if names is not None and len(names) != index + 1:
        raise InputError("names", "must be as many as contributions", f"{len(names)} for {index + 1}")
