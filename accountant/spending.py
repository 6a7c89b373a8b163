"""Who pays for a release: one record's share of what its dataset, its client and its groups released."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from accountant.errors import InputError
from accountant.events import Event, Unit, canonical_json

SPEND = "spend"
LONGEST_NAME = 200

Payer = tuple[str, str]  # (client, group); "" stands for all clients, all groups


class Source(NamedTuple):
    """What a ledger row is about. `body` is an event's canonical text, or what another kind of row says."""

    dataset: str
    client: str
    group: str
    channel: str
    run: str
    body: str


class Draft(NamedTuple):
    """What a new ledger row will say; its place in the chain is not known yet."""

    kind: str
    source: Source
    round: int | None = None
    repeats: int = 1


@dataclass(frozen=True)
class Release:
    """One release, or `count` equal ones, and whose it was.

    client "" touches every client's records; group "" touches every group's, otherwise "attribute=value".
    A release without a round happens before the first.
    """

    event: Event
    count: int = 1
    client: str = ""
    group: str = ""
    channel: str = ""
    round: int | None = None

    def __post_init__(self) -> None:
        """Refuse labels that could be read two ways."""
        require_labels(self.client, self.group, self.channel, self.round, self.count)

    @property
    def payer(self) -> Payer:
        """The client and group whose records pay for it."""
        return payer_of(self.client, self.group, self.event)


@dataclass(frozen=True)
class Spend:
    """One release, or `count` identical ones: what, from which data, and for which part of the run.

    client: whose records; "" when the release touches the records of every client.
    group: "attribute=value" when it touches only records of that group; "" when it touches all of them.
    Groups of one attribute exclude each other, so their releases compose in parallel; groups of different
    attributes overlap and their releases add up. Hence the attribute in the name, and for combined groups one
    attribute for the combination: "sex,race=F,B". A group's meaning must not change while a dataset lives.
    Under replace-one, the replacing record is one of the same groups.
    """

    dataset: str
    event: Event
    client: str = ""
    group: str = ""
    channel: str = ""
    run: str = ""
    round: int | None = None
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse what could not be written down without doubt."""
        require_name("dataset", self.dataset)
        require_name("run", self.run, empty=True)
        if not isinstance(self.event, Event):
            raise InputError("event", "must be an accountant event", self.event, "See accountant.events.")
        require_labels(self.client, self.group, self.channel, self.round, self.count)

    @property
    def payer(self) -> Payer:
        """The client and group that pay."""
        return payer_of(self.client, self.group, self.event) if self.group else (self.client, "")

    def draft(self, body: str) -> Draft:
        """The ledger row of this spend, given its event's canonical text."""
        source = Source(self.dataset, self.client, self.group, self.channel, self.run, body)
        return Draft(SPEND, source, self.round, self.count)


def drafts(spends: Iterable[Spend]) -> list[Draft]:
    """The ledger rows of these spends; spends that share an event share its text."""
    texts: dict[int, str] = {}
    rows = []
    for spend in spends:
        event = spend.event
        body = texts.get(id(event)) or texts.setdefault(id(event), canonical_json(event))
        rows.append(spend.draft(body))
    return rows


def payer_of(client: str, group: str, event: Event) -> Payer:
    """Who pays for a release; where whole clients are protected, groups inside one are no separate payers."""
    protected = event.neighbouring
    return client, "" if protected is not None and protected.unit is Unit.CLIENT else group


def require_labels(client: str, group: str, channel: str, round: int | None, count: int) -> None:
    """Raise `InputError` if a label of a release could be read two ways, or a number of it is none."""
    require_name("client", client, empty=True)
    require_name("channel", channel, empty=True)
    require_group(group)
    require_count("count", count, at_least=1)
    if round is not None:
        require_count("round", round, at_least=0)


def require_name(name: str, value: object, *, empty: bool = False) -> str:
    """The value, if it is a printable text that looks the same wherever it is written; else `InputError`."""
    text = require_text(name, value, empty=empty)
    if "  " in text:
        raise InputError(name, "must not have several spaces in a row", value, "Tables show them as one.")
    return text


def folded(name: str) -> str:
    """The name without what people write in different ways: capitals, widths and ligatures, spaces at commas."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return plain.replace(" ,", ",").replace(", ", ",")


def require_one_spelling(name: str, values: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """The new values by their folded form, if none is another spelling of one already known; else `InputError`.

    Two spellings of one client or group would pay separately for the same people.
    """
    new: dict[str, str] = {}
    for value in values:
        key = folded(value)
        spelt = known.get(key) or new.setdefault(key, value)
        if spelt != value:
            remedy = "Two spellings would be two payers for the same records."
            raise InputError(name, f"must be written {spelt!r}, as before", value, remedy)
    return new


def require_text(name: str, value: object, *, empty: bool = False) -> str:
    """The value, if it is printable text, normalised and not too long; otherwise `InputError`."""
    if not isinstance(value, str):
        raise InputError(name, "must be text", value)
    if not value and not empty:
        raise InputError(name, "must not be empty", value)
    return _checked_name(name, value)


@lru_cache(maxsize=4096)
def _checked_name(name: str, value: str) -> str:
    """The value, remembered: a round repeats the names of the round before."""
    if not value.isprintable() or value != value.strip():
        raise InputError(name, "must be printable text without spaces at its ends", value)
    if len(value) > LONGEST_NAME:
        raise InputError(name, f"must have at most {LONGEST_NAME} characters", len(value))
    if not unicodedata.is_normalized("NFC", value):
        # Otherwise two names that look alike on paper would have two budgets.
        raise InputError(name, "must be in Unicode normal form C", value, "unicodedata.normalize does that.")
    return value


def require_group(value: object) -> str:
    """The value, if it is "" or "attribute=value"; otherwise `InputError`."""
    if value == "":
        return ""
    group = require_name("group", value, empty=True)
    attribute, _, label = group.partition("=")
    if group.count("=") != 1 or not attribute or not label or f"{attribute.strip()}={label.strip()}" != group:
        raise InputError(
            "group",
            'must be "attribute=value" with one "=" and no spaces around it',
            value,
            'Groups of different attributes overlap. Write "sex=F"; for a combination "sex,race=F,B".',
        )
    return group


# A run divides the records into those that it trains on and those that it tests on. A release about one side only has
# that side as its group: the sides of one run exclude each other, as groups of one attribute do, so that a record pays
# for the costlier one of each run, and for the runs together. A release without it is paid for by both.
#
# That holds where records are added or removed and the division looks at each record by itself, so that one record
# more moves no other. It is no claim about a record that is replaced, which may change sides.
TRAIN, TEST = SIDES = ("train", "test")
_SIDE = "side in "


def side_group(run: str, side: str) -> str:
    """The group of the records on one side of a run's division."""
    if side not in SIDES:
        raise InputError("side", f"must be one of {list(SIDES)}", side)
    return require_group(f"{_SIDE}{run}={side}")


def is_side(group_or_attribute: str) -> bool:
    """Whether a group, or an attribute, is that of a run's division and no property of people."""
    return group_or_attribute.startswith(_SIDE)


def attribute_of(group: str) -> str:
    """The attribute that a group is a value of; "" of no group."""
    return group.partition("=")[0]


def require_count(name: str, value: object, *, at_least: int) -> int:
    """The value, if it is a whole number from `at_least` to 2**53; otherwise `InputError`."""
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= 2**53:
        raise InputError(name, f"must be a whole number, at least {at_least}", value)
    return value


def add_up(*amounts: float) -> float:
    """The sum, rounded up: many small spends must not vanish in rounding."""
    total = 0.0
    for amount in amounts:
        if amount:
            total = math.nextafter(total + amount, math.inf) if total else amount
    return total


def worst_record(
    spent: Mapping[Payer, float], touched: Collection[Payer] | None = None
) -> tuple[float, str, tuple[str, ...]]:
    """(largest spending of any record, its client, its groups), from what each payer has spent; 0 if nobody.

    max over clients c of  Σ_{own = "", c} [ S(own, "") + Σ_attributes max over its groups g of S(own, g) ],
    with the maximum over g taken once for both kinds of `own`. touched: only records that one of these payers
    stands for.
    """
    if not any(group or not client for client, group in spent):
        # No groups, nothing shared: the usual round of training.
        if touched is None or ("", "") in touched:
            amount, client = max(((amount, client) for (client, _), amount in spent.items()), default=(0.0, ""))
        else:
            amount, client = max(((spent.get(payer, 0.0), payer[0]) for payer in touched), default=(0.0, ""))
        return amount, client, ()
    by_client: dict[str, dict[str, float]] = {}
    for (client, group), amount in spent.items():
        by_client.setdefault(client, {})[group] = amount
    shared = by_client.pop("", {})
    asked: dict[str, set[str]] = {}
    for client, group in [("", "")] if touched is None else touched:
        asked.setdefault(client, set()).add(group)
    worst: tuple[float, str, tuple[str, ...]] = (0.0, "", ())
    for client, mine in by_client.items() or {"": {}}.items():
        groups = asked.get("", set()) | asked.get(client, set())
        for group in [""] if "" in groups else groups:
            total, its_groups = _costliest(shared, mine, group)
            if total > worst[0]:
                worst = (total, client, its_groups)
    return worst


def _costliest(shared: Mapping[str, float], mine: Mapping[str, float], fixed: str) -> tuple[float, tuple[str, ...]]:
    """(largest spending of a record of one client, its groups), by group; `fixed`: a group it is in, or ""."""
    only = attribute_of(fixed)
    worst_case: dict[str, tuple[float, str]] = {}
    for group in {**shared, **mine}:
        attribute = attribute_of(group)
        if group and (attribute != only or group == fixed):
            amount = add_up(shared.get(group, 0.0), mine.get(group, 0.0))
            worst_case[attribute] = max(worst_case.get(attribute, (-1.0, "")), (amount, group))
    total = add_up(shared.get("", 0.0), mine.get("", 0.0), *(amount for amount, _ in worst_case.values()))
    return total, tuple(group for _, group in worst_case.values())
