"""A data holder's ledger while it answers one message: what it releases is paid for there, and kept."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from accountant.errors import InputError, Refused
from privfair.channels.base import Declined, PriceList, channel_of, registered, require_planned, respond, round_of
from privfair.channels.counts import COUNTS
from privfair.channels.features import EMBEDDINGS
from privfair.channels.updates import UPDATES
from privfair.clients.client import Client
from privfair.clients.embedder import Embedder
from privfair.config import Config
from privfair.datasets.records import Federation
from privfair.deployment import holder_state as storage
from privfair.deployment.agreement import require_acceptable
from privfair.deployment.holder_state import HolderState, own_key, own_records
from privfair.deployment.protocol import (
    BEHIND,
    FINAL,
    NO_TERMS,
    UNKNOWN_RUN,
    Envelope,
    byte_parts,
    differences,
    digest,
    holders,
    read_sums,
    refusal,
    require_kind,
    schema_to_json,
    sealed,
    shared_plan,
    terms_to_text,
    text,
)
from privfair.federated.codec import decode, decode_request, encode, encode_request
from privfair.federated.exchange import singles
from privfair.federated.messages import Counts, Reply, Request, Sealed
from privfair.federated.model_state import Replica
from privfair.federated.release_plan import ReleasePlan
from privfair.privacy.forecast import count_spends, planned_spends
from privfair.privacy.ledger_gateway import LedgerGateway
from privfair.privacy.requirements import require_decided, require_separate
from privfair.privacy.run_ledger import RunLedger, cell_labels, entropy_of, named_run, require_no_budget
from privfair.privacy.statement import account, collusion, noise, total_epsilon
from privfair.runs.assembly import RunSpec
from privfair.secure_aggregation import ClientAggregator, Forged, TooNoisy, require_resumable


@dataclass(frozen=True)
class Session:
    """The desk of one holder in one run."""

    run_ledger: RunLedger
    gateway: LedgerGateway
    price: PriceList
    parts: RunSpec
    me: int

    @property
    def rows(self) -> int:
        """This holder's rows of the run."""
        return sum(
            spend.client == self.price.client for _, spend in self.run_ledger.ledger.spends(run=self.run_ledger.run)
        )

    def rounds(self, channel: str) -> list[int]:
        """The rounds for which this holder has rows on a channel."""
        rows = (s for _, s in self.run_ledger.ledger.spends(run=self.run_ledger.run) if s.client == self.price.client)
        return [s.round for s in rows if s.channel == channel and s.round is not None]

    def answer(self, request: Request, respond: Callable[[Request], Reply]) -> bytes:
        """The message of the answer: the stored one, or one that is made and paid for now."""
        return encode(self.gateway.answer([(0, request)], lambda _, asked: respond(asked))[0])

    def released_counts(self) -> bytes | None:
        """The message of the counts that left in this run; None where none did."""
        return self.gateway.stored(0, COUNTS, None)

    def require_room(self, release_plan: ReleasePlan | None) -> None:
        """Raise unless the rest of the run fits into the data's budget; before terms, as far as it is known."""
        if not self.run_ledger.budgeted or self.parts.planner is None:
            return
        plan, rounds, prices = self.parts.plan, self.parts.config.federation.rounds, {self.me: self.price}
        known = release_plan or self.parts.planner.terms_beforehand(self.parts.clients)
        counts = count_spends(known, plan, prices) if release_plan is None else []
        self.run_ledger.ledger.require_room([*counts, *planned_spends(known, plan, range(rounds), prices)])

    def forget(self, round_number: int) -> None:
        """Let go of the stored messages of a round that is over; their prices stay."""
        for channel in (channel.name for channel in registered() if channel.in_rounds):
            found = self.run_ledger.ledger.reservations(
                run=self.run_ledger.run, round=round_number, client=self.price.client, channel=channel
            )
            if found:
                self.run_ledger.ledger.discard_message(*(reservation.token for reservation in found))

    def statement(self, release_plan: ReleasePlan) -> dict[str, Any]:
        """What this holder released in the run, and what bounds it: the plan, as long as it was kept.

        Who takes part in which round is not in this holder's hands: nothing less than the plan is claimed.
        """
        planner, ledger, config, claim = (
            self.parts.planner,
            self.run_ledger.ledger,
            self.parts.config,
            release_plan.claim,
        )
        if planner is None or claim is None:
            raise ValueError("a run without privacy has no statement")
        mine = [s for _, s in ledger.spends(run=self.run_ledger.run) if s.client == self.price.client]
        accountant, prices = account(mine, planner.neighbouring), {self.me: self.price}
        total = total_epsilon(config, release_plan, mine, plan=self.parts.plan, prices=prices, absent=True)
        spent, head, inferred = accountant.by_channel(claim.delta), ledger.head(), self.parts.schema.inferred
        bounded = math.isfinite(total.pld) and not total.broken
        return {
            "client": self.price.client,
            "private": bounded and not (self.run_ledger.seeded or inferred),
            "claim": total.broken,
            "epsilon": {"rdp": _finite(total.rdp), "pld": _finite(total.pld)},
            "epsilon_of": total.of,
            "delta": claim.delta,
            "adjacency": str(planner.adjacency),
            "unit": str(planner.unit),
            "seeded": self.run_ledger.seeded,
            "schema_inferred": inferred,
            "beyond_plan": list(total.beyond),
            "spent_by_channel": {channel: _finite(value) for channel, value in spent.items()},
            "noise": noise(release_plan, config, planner.work),
            "collusion": collusion(release_plan, planner),
            "ledger": {
                "url": ledger.url,
                "id": ledger.ledger_id,
                "dataset": self.run_ledger.dataset,
                "run": self.run_ledger.run,
                "rows": len(mine),
                "head": head.hash,
                "head_row": head.sequence,
            },
        }


@contextmanager
def session(
    config: Config, federation: Federation, parts: RunSpec, me: int, run: str, ledger_id: str | None, rows: int = 0
) -> Iterator[Session]:
    """Open the holder's ledger for a run; one that lacks rows it had before is refused."""
    if parts.planner is None:
        raise ValueError("a run without privacy has no ledger")
    run_ledger = RunLedger.open(config, federation, run, ledger_id=ledger_id, without_noise=parts.planner.without_noise)
    try:
        price = PriceList(
            dataset=run_ledger.dataset,
            run=run,
            client=federation.clients[0].name,
            labels=cell_labels(parts.cells, parts.schema),
            cells=parts.cells,
            adjacency=parts.planner.adjacency,
            cell_counts=parts.cells.membership(federation.clients[0].train).sum(axis=0),
            unit=parts.planner.unit,
        )
        gateway = LedgerGateway(
            run_ledger.ledger,
            [price],
            run=run,
            fingerprint=run_ledger.fingerprint,
            retries=config.privacy.retries,  # the server does not see this ledger: it plans with so many
            unplanned=(),
        )
        found = Session(run_ledger, gateway, price, parts, me)
        if found.rows < rows:
            raise Refused("The ledger is an older copy: rows of this run are missing. Put the newer one back.")
        yield found
    finally:
        run_ledger.ledger.close()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---- A data holder's work on one message: agree to terms, catch up with sums, answer requests once.


UNOPENED = "This data holder has left the run: a sum could not be opened."
OVER = "The run is over."


class Curable(Refused):
    """A refusal about which the server can do something: it sends what is missing."""

    def __init__(self, code: str, reason: str) -> None:
        """The code tells what is missing."""
        super().__init__(reason)
        self.code = code


@dataclass
class Work:
    """One message being answered."""

    parts: RunSpec
    me: int
    folder: Path  # of the run
    memory: HolderState
    client: Client
    replica: Replica
    gateway: Session | None

    def keep(self) -> None:
        """Write down what is remembered now."""
        rows = self.gateway.rows if self.gateway else 0
        self.memory = replace(self.memory, replica=self.replica.state(), control=self.client.control, rows=rows)
        storage.write(self.folder, self.memory)

    def agree(self, message: Envelope) -> None:
        """Take the terms of the order, if they are those of the plan."""
        wanted, reported = text(message, "terms_id"), text(message, "terms")
        known = "" if self.memory.release_plan is None else digest(terms_to_text(self.memory.release_plan))
        if wanted in ("", known):  # none are named for counts, which come before them
            return
        if not reported:
            raise Curable(NO_TERMS, "These terms are not known here.")
        try:
            release_plan = ReleasePlan.from_json(json.loads(reported))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise Declined(f"The terms cannot be read ({type(error).__name__}).") from None
        require_acceptable(release_plan, self.memory.release_plan, self.parts, self.me, self._own_counts())
        if self.gateway:
            self.gateway.require_room(release_plan)
        self.memory = replace(self.memory, release_plan=release_plan)
        self.keep()

    def _own_counts(self) -> Counts | None:
        """The counts that this holder released in this run, as its folder or its ledger has them; None: none so far."""
        message = self.memory.counts
        if message is None and self.gateway:
            message = self.gateway.released_counts()
        counts = None if message is None else decode(message)
        return counts if isinstance(counts, Counts) else None

    def catch_up(self, sums: list[Sealed]) -> None:
        """Open the sums of rounds that this holder has not seen.

        Whoever could send many sums and learn which of them open would learn about the key (the schemes are not made
        for that): after one that does not, this holder has left the run.
        """
        for one in sums:
            if one.round == self.replica.round + 1:
                if self.memory.release_plan is None or one.step != self.memory.release_plan.sum_step:
                    raise Declined("The sums are not on the agreed grid.")
                try:
                    self.replica.at(one)
                except (TooNoisy, Forged):
                    raise self._left() from None

    def _left(self) -> Declined:
        """The refusal of a holder that leaves the run, which is written down."""
        self.memory = replace(self.memory, left=UNOPENED)
        self.keep()
        return Declined(UNOPENED)

    def answer(self, request: Request) -> bytes:
        """The message of the answer: the stored one, or a new one, if it is what was agreed and its turn."""
        require_planned(request, self.parts, self.memory.release_plan, self.me)
        if channel_of(request).phase == "on demand":  # not of a private run, and the same whenever it is asked
            self._require_model(request)
            return encode(respond(self.client, request))
        channel, number = request.channel, round_of(request)
        place = channel if number is None else f"{channel}-{number}"
        form = hashlib.blake2b(encode_request(request), digest_size=16).hexdigest()
        reported = self.gateway.gateway.released(0, request) if self.gateway else place in self.memory.answers
        if reported and self.memory.asked.get(place, form) != form:
            raise Declined(f"The {channel} were told before, for a request of another content.")
        stored = self.gateway.gateway.stored(0, channel, number) if self.gateway else reported
        if not stored:
            self._require_turn(channel, number)
            self._require_model(request)
            self._require_openable(request)
        self.memory = replace(self.memory, asked={**self.memory.asked, place: form})
        self.keep()  # before anything is released: the same request again gets the same answer, another one none
        if self.gateway:
            message = self.gateway.answer(request, lambda asked: respond(self.client, asked))
            if number is not None and number >= 2:
                self.gateway.forget(number - 2)
        else:
            message = self.memory.answers[place] if reported else encode(respond(self.client, request))
            self.memory = _pruned(self.memory.with_answer(place, message), channel, number)
        if channel == COUNTS:
            self.memory = replace(self.memory, counts=message)
        return message

    def _require_openable(self, request: Request) -> None:
        """Raise if the features of a training request cannot be opened; as for other sums, such a one is the last.

        They are opened once: the client finds them opened when it trains.
        """
        try:
            channel_of(request).opened(request, self.client)
        except (TooNoisy, Forged):
            raise self._left() from None
        except InputError as error:  # it names what the server sent, and nothing of the records
            raise Declined(f"The shared features are not the agreed ones: {error}") from None

    def _require_turn(self, channel: str, number: int | None) -> None:
        """Nothing, unless a later round has been answered already, as the folder or the ledger tell."""
        latest = _latest(self.memory, channel)
        if self.gateway:
            latest = max([latest, *self.gateway.rounds(channel)], key=lambda r: -1 if r is None else r)
        if number is not None and latest is not None and number < latest:
            raise Declined(f"Round {number} is over: round {latest} has been answered.")

    def _require_model(self, request: Request) -> None:
        """Nothing, if the request's model is one that this holder can load."""
        model = getattr(request, "model", None)
        if model is None:
            return
        if isinstance(model, Sealed):
            if self.parts.config.scheme == "plain":
                raise Declined("The plan has no encrypted sums.")
            if model.round > self.replica.round:
                raise Curable(BEHIND, f"Sums are missing here after the first {self.replica.round}.")
            if model.round < self.replica.round:
                raise Declined(f"The model is of an earlier round: {self.replica.round} sums have been opened here.")
            return
        size, dtype = self.replica.parameters.size, self.replica.parameters.dtype
        for values in (model.values, model.control, model.snapshot):
            if values is not None and (values.shape != (size,) or values.dtype != dtype):
                raise Declined("The model has another form than agreed.")
        if self.parts.config.scheme != "plain":
            raise Declined("The plan has encrypted sums, and no models in the open.")


def _latest(memory: HolderState, channel: str) -> int | None:
    """The latest round in which something was asked on a channel."""
    rounds = [int(place.rpartition("-")[2]) for place in memory.asked if place.startswith(f"{channel}-")]
    return max(rounds, default=None)


def _pruned(memory: HolderState, channel: str, number: int | None) -> HolderState:
    """Without the answers of rounds that are over."""
    if number is None:
        return memory
    kept = {f"{channel}-{n}" for n in (number - 1, number)}
    answers = {p: a for p, a in memory.answers.items() if not p.startswith(f"{channel}-") or p in kept}
    return replace(memory, answers=answers)


# ---- A data holder: its records, its ledger, its folder, the plan it agreed to, and its answers to the server.


WITHHELD = "Its budget or its ledger does not allow it; its own log says more."
RUN_NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")


class Holder:
    """One data holder. `handle` is its only door."""

    def __init__(self, config: Config, name: str, folder: Path, federation: Federation | None = None) -> None:
        """Load the records and the key; nothing is told yet. `federation`: instead of the configured records."""
        names = holders(config)
        if name not in names:
            raise InputError("client", f"must be one of run.clients, {', '.join(names)}", name)
        require_decided(config)
        self.config, self.name, self.folder, self.me = config, name, folder, names.index(name)
        self.federation = own_records(config, name) if federation is None else federation
        self.parts = RunSpec.of(config, self.federation.schema, len(names))
        if self.parts.planner is not None:
            self.parts.planner.require_delta()
            require_separate(self.parts.cells.notion, self.federation)
        self._model = self.parts.model()
        self._initial = self._model.parameters()
        keys = own_key(config, quantise=config.whole_sums)
        self._aggregator = ClientAggregator(keys, self.parts.fixed_point, channel=UPDATES)
        self._features: ClientAggregator | None = None
        if self.parts.embedding is not None:
            code = self.parts.feature_code
            keys = own_key(config, quantise=code is not None)
            self._features = ClientAggregator(keys, code, channel=EMBEDDINGS)

    def handle(self, envelope: Mapping[str, object]) -> Envelope:
        """The answer to a message of the server; a refusal, with its reason, if there is none."""
        message: Envelope = dict(envelope)  # type: ignore[arg-type]
        try:
            kind = require_kind(message, "hello", "order", "end")
            run = text(message, "run")
            if not RUN_NAME.fullmatch(run):
                raise Declined("No run has such a name.")
            with storage.locked(self.folder):
                if kind == "hello":
                    return self._introduce(run, message)
                return self._order(run, message) if kind == "order" else self._end(run, message)
        except Curable as wanted:
            return self._refusal(message, str(wanted), wanted.code)
        except Refused as reason:
            return self._refusal(message, self._said(reason))
        except Exception:  # noqa: BLE001 - what it is may depend on records: it stays here
            traceback.print_exc(file=sys.stderr)
            return self._refusal(message, "It could not answer; its own log says why.")

    def _refusal(self, message: Envelope, reason: str, code: str = FINAL) -> Envelope:
        return refusal(reason, client=self.name, code=code, sums=self._sums(message))

    def _said(self, refused: Refused) -> str:
        """What the server gets to read of a refusal. The whole of it is for this holder's own log.

        `Declined` speaks of the plan and of what the server sent, no more. Any other refusal comes from the ledger, and
        may tell how much of a budget is left, paths, or other runs.
        """
        print(f"privfair: {self.name} refused: {refused}", file=sys.stderr, flush=True)
        return str(refused) if isinstance(refused, Declined) else WITHHELD

    # ---- hello

    def _introduce(self, run: str, message: Envelope) -> Envelope:
        """Who this is, if the server has the same plan; a new run is remembered from here on."""
        theirs = json.loads(text(message, "plan"))
        if not isinstance(theirs, dict):
            raise Declined("The plan is not a table.")
        apart = differences(shared_plan(self.config), theirs)
        if apart:
            raise Declined(f"The plans differ: {'; '.join(apart)}.")
        folder = self.folder / run
        if self._memory(run) is None:
            ledger_id = None
            if self.parts.planner is None:
                require_no_budget(self.config, self.federation)
                self._require_only_run(run, budgeted=False)
            else:
                with self._session(run, None) as gateway:
                    self._require_only_run(run, budgeted=gateway.run_ledger.budgeted)
                    gateway.require_room(None)
                    ledger_id = gateway.run_ledger.ledger.ledger_id
            storage.write(folder, HolderState(ledger_id=ledger_id))
        schema = schema_to_json(self.federation.schema)
        return sealed("here", run, client=self.name, schema=schema, sums=self._sums(message))

    def _require_only_run(self, run: str, *, budgeted: bool) -> None:
        """Without a lifetime budget nothing but this bounds how often a server starts anew."""
        others = [path.parent.name for path in self.folder.glob(f"*/{storage.FILE}") if path.parent.name != run]
        if others and not budgeted:
            raise Refused(
                f"This data holder took part in the run {others[0]}, and its data have no lifetime budget: another run "
                "needs one (privfair budget set), or a new folder."
            )

    def _sums(self, message: Mapping[str, object]) -> int:
        """How many sums this holder has opened in the run."""
        run = message.get("run")
        memory = storage.read(self.folder / run) if isinstance(run, str) and RUN_NAME.fullmatch(run) else None
        return 0 if memory is None or memory.replica is None else int(memory.replica["round"][0])

    # ---- orders

    def _order(self, run: str, message: Envelope) -> Envelope:
        with ExitStack() as stack:
            work = self._work(run, stack)
            if work.memory.left:
                raise Declined(work.memory.left)
            work.agree(message)
            work.catch_up(read_sums(message))
            requests = byte_parts(message, "request")
            asked = decode_request(requests[0]) if len(requests) == 1 else None
            if asked is None:
                raise Declined("An order has one request.")
            replies, reasons = [], []
            for single in singles(asked):
                try:
                    replies.append(work.answer(single))
                    reasons.append("")
                except Curable:
                    raise
                except Refused as reason:
                    replies.append(b"")
                    reasons.append(self._said(reason))
            work.keep()
            return sealed("answer", run, replies=replies, reasons=reasons, sums=work.replica.round)

    def _work(self, run: str, stack: ExitStack) -> Work:
        folder = self.folder / run
        memory = self._memory(run)
        if memory is None:
            raise Curable(UNKNOWN_RUN, "This run is not known here.")
        gateway = None
        if self.parts.planner is not None:
            gateway = stack.enter_context(self._session(run, memory))
        replica = self.parts.replica(self._initial.copy(), self._aggregator.in_run(run))
        embedder = None
        if self.parts.embedding is not None and self._features is not None:
            embedder = Embedder(self.parts.embedding, self._features.in_run(run))
        if memory.replica is not None:
            replica.restore(memory.replica)
        client = Client(
            self.me,
            self.federation.clients[0],
            self.federation.schema,
            self.parts.cells,
            self._model,
            replica,
            seed=self.config.run.seed,
            entropy=entropy_of(self.config, self.me),
            embedder=embedder,
        )
        client.control = memory.control
        return Work(self.parts, self.me, folder, memory, client, replica, gateway)

    # ---- the end

    def _end(self, run: str, message: Envelope) -> Envelope:
        """Open the last sums; write the model, and what was released, into the run's folder."""
        from privfair.runs.folder import weights_file
        from privfair.util import write_bytes, write_json

        with ExitStack() as stack:
            work = self._work(run, stack)
            if work.memory.left == UNOPENED:
                raise Declined(UNOPENED)
            work.catch_up(read_sums(message))
            work.memory = replace(work.memory, left=OVER)  # before stored answers are let go: none is made again
            work.keep()
            result = work.replica.result
            if self.config.scheme == "plain":
                sent = byte_parts(message, "model")
                found = np.frombuffer(sent[0], dtype=result.dtype).copy() if sent else result
                if found.shape != result.shape:
                    raise Declined("The model has another form than agreed.")
                result = found
            if not np.isfinite(result).all():
                raise Declined("The model has weights that are not finite.")
            self._model.load(result)
            write_bytes(work.folder / "model.safetensors", weights_file(self._model.module.state_dict()))
            if work.gateway and work.memory.release_plan is not None:
                for number in range(max(0, self.config.federation.rounds - 2), self.config.federation.rounds):
                    work.gateway.forget(number)
                write_json(work.folder / "privacy.json", work.gateway.statement(work.memory.release_plan))
            return sealed("ended", run, sums=work.replica.round)

    # ---- parts

    def _memory(self, run: str) -> HolderState | None:
        """What is remembered of a run; one that was begun with messages of an earlier version is refused."""
        memory = storage.read(self.folder / run)
        if memory is not None and not memory.left:
            try:
                require_resumable(self.config.scheme, memory.messages)
            except InputError as error:
                raise Declined(str(error)) from None
        return memory

    def _session(self, run: str, memory: HolderState | None) -> AbstractContextManager[Session]:
        name = named_run(run, self.config, self.federation.schema, None)
        ledger_id, rows = (None, 0) if memory is None else (memory.ledger_id, memory.rows)
        return session(self.config, self.federation, self.parts, self.me, name, ledger_id, rows)
