"""The server's side of a federation on several machines: requests out as messages, replies in, absences noticed.

What comes in is checked whole in one place, `_read`, before anything uses it. Whoever sends what cannot be used is left
out, with a reason that is safe to print; the others go on.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from accountant.errors import InputError, Refused
from privfair.channels.base import channel_of, round_of
from privfair.deployment.protocol import (
    FINAL,
    Envelope,
    Value,
    byte_parts,
    digest,
    opened_sums,
    pack_sums,
    printable,
    require_kind,
    schema_from_text,
    sealed,
    text,
)
from privfair.deployment.sums import FeatureSums, Sums, pack_feature
from privfair.federated.exchange import Memory, decode, decode_masking, encode_request, singles, size
from privfair.federated.messages import (
    Answered,
    Asked,
    Bundle,
    BundleReply,
    MaskingRequest,
    Missing,
    Reply,
    Request,
    Sealed,
)
from privfair.federated.release_plan import RELEASE_PLANS, ReleasePlan

POLL = 1.0  # seconds between two looks for clients that have not come yet
PATIENCE = 5  # a node that did not introduce itself in time is asked again after so many times that time
AGAIN = 10.0  # seconds after which a node that refused is asked again: its owner may have corrected its file
MOST_SCHEMA = 2**22  # characters; a longer schema is not read


class Link(Protocol):
    """Carries messages to nodes and back."""

    def nodes(self) -> set[int]:
        """Who is connected now."""
        ...

    def exchange(self, messages: Mapping[int, Envelope], deadline: float) -> dict[int, Mapping[str, Value] | str]:
        """What each node answered within so many seconds, or in words why it did not."""
        ...


@dataclass
class Node:
    """A node that has introduced itself, and what it is known to have."""

    id: int
    sums: int  # so many sums it has opened
    terms_id: str = ""  # of the terms it accepted
    features: int = 0  # so many rounds' sums of features its λ has followed, where it follows a target


Check = Callable[[str, Request, Reply], Reply]  # (client, request, reply) -> the reply, or an InputError


class Remote:
    """Clients by name, wherever they are. A node speaks for the client whose name its owner gave it."""

    def __init__(
        self, link: Link, names: Sequence[str], *, run: str, plan: str, sums: Sums, deadline: float, wait: float
    ) -> None:
        """Nobody is known yet: see `gather`. `deadline`: seconds for an answer; `wait`: for an introduction."""
        self._link, self._names, self.sums, self._deadline, self._wait = link, list(names), sums, deadline, wait
        self._not_before: dict[int, float] = {}  # when to greet a node again that did not answer, or refused
        self._run, self._plan = run, plan
        self._known: dict[str, Node] = {}
        self._turned_away: dict[int, str] = {}  # nodes that refused, or were refused, and why
        self._out: set[int] = set()  # clients that could not be reached when they were last asked
        self._reasons: dict[str, str] = {}  # the same by the client's name, where it is known
        self._terms, self._terms_id = "", ""
        self.schema: str | None = None
        self.bytes_up = self.bytes_down = 0
        self.check: Check = lambda client, request, reply: reply
        self.features: FeatureSums | None = None  # where λ follows a target: sums that every client must have opened
        self.least = 0  # of fewer answers nothing comes (masked sums): those who are away are waited for

    @property
    def clients(self) -> int:
        """How many the plan has."""
        return len(self._names)

    # ---- who is there

    def gather(self, least: int) -> str:
        """Wait until so many are there; the schema that they share. `Refused` when time is up, or when all refuse."""
        end = time.monotonic() + self._wait
        schemas: dict[str, str] = {}
        while True:
            self._not_before = {n: t for n, t in self._not_before.items() if n in self._turned_away}
            schemas |= self._greet(self.schema)
            if len(self._known) >= least:
                break
            refused = [name for name in self._names if name in self._reasons and name not in self._known]
            if len(refused) == self.clients or time.monotonic() > end:
                raise Refused(self._too_few("All data holders refused" if len(refused) == self.clients else ""))
            time.sleep(min(POLL, max(0.0, end - time.monotonic())) or POLL)
        if self.schema is not None:  # it was gathered before, of fewer
            return self.schema
        self.schema, _ = Counter(schemas.values()).most_common(1)[0]
        for name in [name for name, schema in schemas.items() if schema != self.schema]:
            self._turn_away(self._known.pop(name).id, name, "Its schema (features, groups, labels) is another.")
        return self.schema

    def _too_few(self, what: str) -> str:
        """Why a run does not begin, with what each data holder said."""
        came = f"{len(self._known)} of {self.clients} ({', '.join(sorted(self._known)) or 'nobody'})"
        what = what or f"Not enough data holders came within {self._wait:g} s: {came}"
        missing = [name for name in self._names if name not in self._known]
        said = [f"{name}: {self._away(name)}" for name in missing]
        unnamed = set(self._turned_away.values()) - set(self._reasons.values())
        return f"{what}. {' '.join([*said, *(f'A node: {reason}' for reason in sorted(unnamed))])}"

    def there(self) -> list[str]:
        """The data holders that are connected now; new ones are greeted first."""
        self._greet(self.schema)
        nodes = self._link.nodes()
        return [name for name in self._names if name in self._known and self._known[name].id in nodes]

    def absent(self, least: int) -> str:
        """Who is not connected, where at least so many must be, and why."""
        there = self.there()
        missing = [f"{name}: {self._away(name)}" for name in self._names if name not in there]
        return f"{len(there)} of at least {least} are there. {' '.join(missing)}"

    def _away(self, name: str) -> str:
        away = "Its node is not connected." if name in self._known else "It has not come."
        return self._reasons.get(name, away)

    def _greet(self, schema: str | None) -> dict[str, str]:
        """Say hello to every node that is not known; the schemas of those who are now.

        Nodes that refused, or did not answer, are greeted again after a while.
        """
        there = self._link.nodes()
        known = {node.id for node in self._known.values()}
        now = time.monotonic()
        new = sorted(n for n in there - known if now >= self._not_before.get(n, now))
        if not new:
            return {}
        hello = sealed("hello", self._run, plan=self._plan)
        found: dict[str, str] = {}
        for node, answer in self._carried(dict.fromkeys(new, hello), self._wait).items():
            if isinstance(answer, str):  # not there after all: those who are must not wait for it again and again
                self._not_before[node] = time.monotonic() + PATIENCE * self._wait
                continue
            name = printable(answer.get("client", ""))
            try:
                if require_kind(answer, "here", "refused") == "refused":
                    self._turn_away(node, name, f"It refused: {printable(text(answer, 'reason'))}")
                    continue
                reported = text(answer, "schema")
                self._admit(node, name, reported, schema, opened_sums(answer), there)
                self._known[name].features = opened_sums(answer, "features")
                found[name] = reported
            except InputError as error:
                self._turn_away(node, name, printable(str(error)))
        return found

    def _turn_away(self, node: int, name: str, reason: str) -> None:
        """Go on without a node, for a while; its reason is logged once, and reported as its absence."""
        if self._turned_away.get(node) != reason:
            print(f"privfair: data holder {name or f'at node {node}'}: {reason}", file=sys.stderr, flush=True)
        self._turned_away[node] = reason
        self._not_before[node] = time.monotonic() + min(AGAIN, self._wait)
        if name in self._names and name not in self._known:
            self._reasons[name] = reason

    def _admit(self, node: int, name: str, reported: str, schema: str | None, sums: int, there: set[int]) -> None:
        if name not in self._names:
            raise InputError("data holder", f"must be one of {', '.join(self._names)}", name)
        if schema is not None and reported != schema:
            raise InputError(f"schema of {name}", "must be that of the others", "another")
        if len(reported) > MOST_SCHEMA:
            raise InputError(f"schema of {name}", f"must have at most {MOST_SCHEMA} characters", len(reported))
        schema_from_text(reported)
        before = self._known.get(name)
        if before is not None and before.id in there:
            raise InputError(f"data holder {name}", "must be one node", "a second one")
        self._known[name] = Node(node, sums)
        self._reasons.pop(name, None)
        self._turned_away.pop(node, None)

    def _carried(self, messages: Mapping[int, Envelope], deadline: float) -> dict[int, Mapping[str, Value] | str]:
        """What the link brings back; the bytes of what went and came are counted."""
        found = self._link.exchange(messages, deadline) if messages else {}
        self.bytes_down += sum(size(message) for message in messages.values())
        self.bytes_up += sum(size(answer) for answer in found.values() if not isinstance(answer, str))
        return found

    # ---- exchanges

    def agreed(self, release_plan: ReleasePlan) -> None:
        """From here on orders are under these terms."""
        self._terms = RELEASE_PLANS.to_text(release_plan)
        self._terms_id = digest(self._terms)

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        """Send each client its request; its reply, or `Missing` with the reason."""
        asked = {k: request(k) for k in clients}
        if asked:
            self._greet(self.schema)
        answers: dict[int, Answered] = {}
        end = 0.0
        while True:
            started = time.monotonic()
            for _ in range(2):  # once more for those who lack something that the server can send
                left = max(1.0, self._deadline - (time.monotonic() - started))
                answers |= self._sent({k: asked[k] for k in clients if k not in answers}, left)
            end = end or time.monotonic() + self._wait
            if not self._worth_waiting(answers, clients) or time.monotonic() > end:
                break
            time.sleep(min(POLL, self._wait))
            self._greet(self.schema)
            answers = {k: found for k, found in answers.items() if not (isinstance(found, Missing) and k in self._out)}
        return [answers.get(k, Missing(k, "It did not have what it needed.")) for k in clients]

    def _worth_waiting(self, answers: Mapping[int, Answered], clients: Sequence[int]) -> bool:
        """Whether too few answered, and those who could not be reached would be enough: refusals are answers."""
        there = sum(not isinstance(answers.get(k), Missing | None) for k in clients)
        out = sum(k in self._out for k in clients)
        return there < self.least <= there + out

    def _sent(self, asked: Mapping[int, Asked], left: float) -> dict[int, Answered]:
        """The answers to orders; without those whose refusal can be cured."""
        there = self._link.nodes() if asked else set()
        self._out.difference_update(asked)
        answers: dict[int, Answered] = {}
        orders: dict[int, Envelope] = {}
        client_of: dict[int, int] = {}
        for k, one in asked.items():
            node = self._known.get(self._names[k])
            if node is None or node.id not in there:
                answers[k] = Missing(k, self._away(self._names[k]))
                self._out.add(k)
                continue
            orders[node.id], client_of[node.id] = self._order(node, one), k
        found = self._carried(orders, left)
        for id_, k in client_of.items():
            answer = self._read(k, asked[k], found.get(id_, "It did not answer in time."))
            if answer is not None:
                answers[k] = answer
        return answers

    def _order(self, node: Node, asked: Asked) -> Envelope:
        """The message of a request: with the terms and the sums that the node does not have."""
        terms_id = node.terms_id if _precedes_terms(asked) else self._terms_id  # counts come before terms
        missing = []
        if isinstance(asked, MaskingRequest):  # of no release: it needs neither terms nor sums
            return sealed("order", self._run, request=[encode_request(asked)], terms_id="", terms="", sums=[])
        model = next((s.model for s in singles(asked) if hasattr(s, "model")), None)
        if isinstance(model, Sealed):
            if model.round and self.sums.get(model.round) is None:
                self.sums.keep(model.round, model.total, model.share, model.step)
            wanted = range(node.sums + 1, model.round + 1)
            missing = [s for s in (self.sums.get(n) for n in wanted) if s is not None]
        return sealed(
            "order",
            self._run,
            request=[encode_request(_stripped(asked))],
            terms_id=terms_id,
            terms=self._terms if terms_id and terms_id != node.terms_id else "",
            **pack_sums(missing),
            **self._followed(node, asked),
        )

    def _followed(self, node: Node, asked: Asked) -> dict[str, Value]:
        """The sums of features that λ follows, but for those that the node has opened, and those in the request."""
        if self.features is None or _precedes_terms(asked):
            return {}
        own = {round_of(single) for single in singles(asked) if channel_of(single).phase == "training"}
        return {"features": [pack_feature(one) for one in self.features.since(node.features) if one.round not in own]}

    def _read(self, k: int, asked: Asked, answer: Mapping[str, Value] | str) -> Answered | None:
        """The replies of an answer, checked whole; None where the refusal can be cured by sending more.

        The one door through which a data holder's words come in. Whatever they are, they end nobody else's run.
        """
        if isinstance(answer, str):
            self._out.add(k)
            return Missing(k, printable(answer))
        try:
            return self._opened(k, asked, answer)
        except InputError as error:
            return Missing(k, printable(f"Its reply could not be read: {error}"))
        except Exception as error:  # noqa: BLE001 - no reply, however odd, may stop the others
            traceback.print_exc(file=sys.stderr)
            return Missing(k, f"Its reply could not be read ({type(error).__name__}).")

    def _opened(self, k: int, asked: Asked, answer: Mapping[str, Value]) -> Answered | None:
        name = self._names[k]
        node = self._known[name]
        kind = require_kind(answer, "answer", "refused")
        node.sums, node.features = opened_sums(answer), opened_sums(answer, "features")
        if kind == "refused":
            return self._refused(k, node, answer)
        messages, reasons = byte_parts(answer, "replies"), answer.get("reasons")
        if isinstance(asked, MaskingRequest):
            if len(messages) != 1:
                raise InputError("answer", "must have 1 reply", len(messages))
            return decode_masking(messages[0])
        requests = singles(asked)
        if not isinstance(reasons, list) or not len(messages) == len(reasons) == len(requests):
            raise InputError("answer", f"must have {len(requests)} replies", len(messages))
        if not _precedes_terms(asked):
            node.terms_id = self._terms_id
        replies = [
            self._checked(k, name, single, message, printable(reason))
            for single, message, reason in zip(requests, messages, reasons, strict=True)
        ]
        return BundleReply(tuple(replies)) if isinstance(asked, Bundle) else replies[0]

    def _checked(self, k: int, name: str, request: Request, message: bytes, reason: str) -> Reply | Missing:
        if not message:
            return Missing(k, reason or "It refused.")
        try:
            return self.check(name, request, decode(message))
        except InputError as error:
            return Missing(k, printable(f"Its reply could not be used: {error}"))

    def _refused(self, k: int, node: Node, answer: Mapping[str, Value]) -> Answered | None:
        if text(answer, "code") == FINAL:
            return Missing(k, printable(text(answer, "reason")))
        node.terms_id = ""
        if text(answer, "code") == "unknown-run":
            del self._known[self._names[k]]
            self._greet(self.schema)
        return None

    def end(self, count: int, model: bytes) -> list[Missing]:
        """Tell everybody that the run is over, with the last sums or the open model; those who did not hear it."""
        messages: dict[int, Envelope] = {}
        there, silent = self._link.nodes(), []
        for k, name in enumerate(self._names):
            node = self._known.get(name)
            if node is None or node.id not in there:
                silent.append(Missing(k, self._away(name)))
                continue
            sums = [] if model else [s for s in map(self.sums.get, range(node.sums + 1, count + 1)) if s is not None]
            messages[node.id] = sealed("end", self._run, model=[model] if model else [], **pack_sums(sums))
        found = self._carried(messages, self._deadline)
        for k, name in enumerate(self._names):
            node = self._known.get(name)
            if node is not None and node.id in messages:
                answer = found.get(node.id, "It did not answer in time.")
                if isinstance(answer, str) or answer.get("kind") != "ended":
                    reason = answer if isinstance(answer, str) else answer.get("reason", "It did not end.")
                    silent.append(Missing(k, printable(reason)))
        return silent

    def client_state(self) -> Memory:
        """Nothing: clients keep their own."""
        return {}

    def restore_clients(self, state: Memory) -> None:
        """Nothing: clients keep their own."""


def _precedes_terms(asked: Asked) -> bool:
    """Whether it is asked without terms: counts, from which they follow, and what masks need."""
    if isinstance(asked, MaskingRequest):
        return True
    return all(channel_of(single).phase == "before" for single in singles(asked))


def _stripped(asked: Asked) -> Asked:
    """Without the encrypted sum, which travels once for all requests, beside them."""
    if isinstance(asked, Bundle):
        return Bundle(tuple(_without(single) for single in asked.requests))
    return _without(asked)


def _without(request: Any) -> Request:
    model = getattr(request, "model", None)
    found: Request = replace(request, model=Sealed(model.round, b"")) if isinstance(model, Sealed) else request
    return found
