"""Composes labelled releases and answers for whom, through which channel, and by when epsilon was spent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import itemgetter

from accountant.bounds import Method, Spent, as_event, spent
from accountant.conversion import require_delta
from accountant.errors import InputError
from accountant.events import Adjacency, Neighbouring, NeighbouringMismatch, Unit, as_adjacency, as_unit
from accountant.spending import Release, attribute_of, is_side, require_group, require_one_spelling
from accountant.worst_case import WorstCase, by_payer


def epsilon(events: object, delta: float = 1e-5, method: Method = "rdp") -> float:
    """ε of these events together at δ: an event, a list of them, or dp-accounting's (add-or-remove)."""
    return spent(events, delta, method).epsilon


class Accountant:
    """Adds up releases on one federation's data, for one notion of neighbours.

    A record is in one client and, of each attribute, in one group: it pays for the releases of its client
    and its groups and for those of everybody. Clients compose in parallel, so the run's ε is the worst
    record's. All figures take the plan as fixed beforehand; adaptive spending goes through a `Budget`.
    """

    def __init__(self, adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE, unit: Unit | str = Unit.RECORD) -> None:
        """An accountant with nothing spent."""
        self.neighbouring = Neighbouring(as_adjacency(adjacency), as_unit(unit))
        self._releases: list[Release] = []
        self._of_client: dict[str, list[tuple[int, Release]]] = {}  # with their places among all
        self._groups: set[str] = set()
        self._spellings: dict[str, dict[str, str]] = {"client": {}, "group": {}}

    @property
    def releases(self) -> tuple[Release, ...]:
        """Everything composed so far, in order."""
        return tuple(self._releases)

    def compose(
        self,
        event: object,
        count: int = 1,
        *,
        client: str = "",
        group: str = "",
        channel: str = "",
        round: int | None = None,
    ) -> Accountant:
        """This accountant, with the release added; unchanged if anything about it is refused."""
        converted = as_event(event, self.neighbouring.adjacency, self.neighbouring.unit)
        if converted.neighbouring not in (None, self.neighbouring):
            remedy = "State the event's sensitivity for this accountant's adjacency and unit."
            rule = f"must be for neighbours that {self.neighbouring}"
            raise NeighbouringMismatch("event", rule, str(converted.neighbouring), remedy)
        release = Release(converted, count, client, group, channel, round)
        labels = {"client": client, "group": group}
        new = {kind: require_one_spelling(kind, [label], self._spellings[kind]) for kind, label in labels.items()}
        for kind, spelling in new.items():
            self._spellings[kind].update(spelling)
        self._of_client.setdefault(release.client, []).append((len(self._releases), release))
        self._groups.add(release.group)
        self._releases.append(release)
        return self

    def spent(
        self,
        delta: float = 1e-5,
        method: Method = "rdp",
        *,
        client: str | None = None,
        group: str | None = None,
        channel: str | None = None,
        up_to_round: int | None = None,
    ) -> Spent:
        """The worst record's cost: of the run, of one client, group or channel, of the rounds so far.

        Where records can be of too many kinds to go through them (many attributes), the bound is by RDP, from the
        largest curve of any record, whatever the method asked for; the answer names its method.
        """
        require_delta(delta)
        if client is not None:
            self._require_known("client", client, self._of_client.keys())
        if group is not None:
            self._require_known("group", group, self._groups)
        chosen = [r for r in self._touching(client) if channel is None or r.channel == channel]
        if up_to_round is not None:
            chosen = [r for r in chosen if r.round is None or r.round <= up_to_round]
        return WorstCase(delta, lenient=False).spent(by_payer(chosen), method, client or "", group or "")

    def epsilon(
        self,
        delta: float = 1e-5,
        method: Method = "rdp",
        *,
        client: str | None = None,
        group: str | None = None,
        channel: str | None = None,
        up_to_round: int | None = None,
    ) -> float:
        """ε of the run (its worst record), or of the part that is asked for."""
        found = self.spent(delta, method, client=client, group=group, channel=channel, up_to_round=up_to_round)
        return found.epsilon

    def by_client(self, delta: float = 1e-5, method: Method = "rdp") -> dict[str, float]:
        """ε of every client, of its worst record."""
        clients = sorted({r.client for r in self._releases if r.client}) or [""]
        return {client: self.epsilon(delta, method, client=client) for client in clients}

    def by_group(self, delta: float = 1e-5, method: Method = "rdp", client: str | None = None) -> dict[str, float]:
        """ε of every group's worst record, in one client or in all."""
        groups = sorted({r.group for r in self._releases if r.group and not is_side(r.group)})
        return {group: self.epsilon(delta, method, client=client, group=group) for group in groups}

    def by_channel(self, delta: float = 1e-5, method: Method = "rdp", client: str | None = None) -> dict[str, float]:
        """ε of every channel by itself. They do not add up to the total, which composes more tightly."""
        channels = sorted({r.channel for r in self._releases})
        return {channel: self.epsilon(delta, method, client=client, channel=channel) for channel in channels}

    def by_round(self, delta: float = 1e-5, method: Method = "rdp", client: str | None = None) -> dict[int, float]:
        """ε after every round, of the worst record so far."""
        rounds = sorted({r.round for r in self._releases if r.round is not None})
        return {number: self.epsilon(delta, method, client=client, up_to_round=number) for number in rounds}

    def spent_on_changing_group(self, client: str, old: str, new: str, delta: float = 1e-5) -> Spent:
        """What distinguishes two datasets in which one person of a client is in another group (RDP).

        The old group's releases see a removal and the new group's an addition: both compose. A group that nothing
        was released about may be either. Releases over everybody, and over the person's groups of other attributes,
        see a record replaced (`all_replaced`), each other attribute by its costliest group (see `largest_on_change`).
        """
        if self.neighbouring != Neighbouring(Adjacency.ADD_OR_REMOVE, Unit.RECORD):
            remedy = "Under replace-one within a group the groups are public and nothing hides who is in which."
            raise InputError("accountant", "must be for add-or-remove one record", str(self.neighbouring), remedy)
        attribute = attribute_of(require_group(old))
        if old == new or not old or attribute_of(require_group(new)) != attribute:
            raise InputError("new", "must be another group of the same attribute", (old, new))
        if new not in self._groups:
            self._require_known("group", old, self._groups)
        self._require_known("client", client, self._of_client.keys())
        moved = [r for r in self._touching(client) if attribute_of(r.group) != attribute or r.group in (old, new)]
        return WorstCase(delta).on_change(by_payer(moved), attribute, client)

    def _touching(self, client: str | None) -> Sequence[Release]:
        """The releases that the records of a client pay for, in order: its own, and those over everybody; or all."""
        if not client:
            return self._releases
        named = [self._of_client.get(name, []) for name in ("", client)]
        return [release for _, release in sorted((one for part in named for one in part), key=itemgetter(0))]

    def _require_known(self, name: str, value: str, known: Collection[str]) -> None:
        if value and value not in known:
            raise InputError(name, f"must be one of {sorted(set(known) - {''})}", value)
