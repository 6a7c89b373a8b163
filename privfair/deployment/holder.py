"""A data holder: its records, its ledger, its folder, the plan it agreed to, and its answers to the server."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from accountant.errors import InputError, Refused
from privfair.aggregation import ClientAggregator, ClientKeys, TooNoisy, load_client, plain_keys
from privfair.attendance import singles
from privfair.clients.client import Client
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation
from privfair.datasets.registry import load as load_dataset
from privfair.deployment import memory as storage
from privfair.deployment.agreement import Declined, require_acceptable, require_planned
from privfair.deployment.envelopes import (
    BEHIND,
    NO_TERMS,
    UNKNOWN_RUN,
    Envelope,
    byte_parts,
    read_sums,
    refusal,
    require_kind,
    sealed,
    text,
)
from privfair.deployment.memory import Remembered
from privfair.deployment.plan import differences, digest, holders, schema_to_json, shared_plan, terms_to_text
from privfair.deployment.session import Session, session
from privfair.messages import Counts, MeasureRequest, Request, Sealed
from privfair.parts import Parts
from privfair.privacy.books import definition, entropy_of, require_no_budget
from privfair.privacy.refusals import require_decided, require_separate
from privfair.replica import Replica
from privfair.request_wire import decode_request, encode_request
from privfair.terms import Terms
from privfair.wire import decode, encode

RUN_NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")
CHANNELS = {"CountsRequest": "counts", "ScoresRequest": "predictions", "TrainRequest": "updates"}
UNOPENED = "This data holder has left the run: a sum could not be opened."
OVER = "The run is over."


class _Curable(Refused):
    """A refusal about which the server can do something: it sends what is missing."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass
class _Work:
    """One message being answered."""

    run: str
    folder: Path
    memory: Remembered
    client: Client
    replica: Replica
    desk: Session | None

    def keep(self) -> None:
        """Write down what is remembered now."""
        rows = self.desk.rows if self.desk else 0
        self.memory = replace(self.memory, replica=self.replica.state(), control=self.client.control, rows=rows)
        storage.write(self.folder, self.memory)


class Holder:
    """One data holder. `handle` is its only door."""

    def __init__(self, config: Config, name: str, folder: Path) -> None:
        """Load the records and the key; nothing is told yet."""
        names = holders(config)
        if name not in names:
            raise InputError("client", f"must be one of run.clients, {', '.join(names)}", name)
        require_decided(config)
        self.config, self.name, self.folder, self.me = config, name, folder, names.index(name)
        self.federation = own_records(config, name)
        self.parts = Parts.of(config, self.federation.schema, len(names))
        if self.parts.planner is not None:
            require_separate(self.parts.cells.notion, self.federation)
        self._model = self.parts.model()
        self._initial = self._model.parameters()
        self._aggregator = ClientAggregator(_client_keys(config), self.parts.fixed_point)

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
        except _Curable as wanted:
            return refusal(str(wanted), code=wanted.code, sums=self._sums(message))
        except Refused as reason:
            return refusal(str(reason), sums=self._sums(message))
        except Exception:  # noqa: BLE001 - what it is may depend on records: it stays here
            traceback.print_exc(file=sys.stderr)
            return refusal("It could not answer; its own log says why.", sums=self._sums(message))

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
        if storage.read(folder) is None:
            ledger_id = None
            if self.parts.planner is None:
                require_no_budget(self.config, self.federation)
                self._require_only_run(run, budgeted=False)
            else:
                with self._session(run, None) as desk:
                    self._require_only_run(run, budgeted=desk.books.budgeted)
                    desk.require_room(None)
                    ledger_id = desk.books.ledger.ledger_id
            storage.write(folder, Remembered(ledger_id=ledger_id))
        schema = schema_to_json(self.federation.schema)
        return sealed("here", run, client=self.name, schema=schema, sums=self._sums(message))

    def _require_only_run(self, run: str, *, budgeted: bool) -> None:
        """Without a lifetime budget nothing but this bounds how often a server starts anew."""
        others = [path.parent.name for path in self.folder.glob(f"*/{storage.FILE}") if path.parent.name != run]
        if others and not budgeted:
            raise Declined(
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
            self._agree(work, message)
            self._catch_up(work, read_sums(message))
            requests = byte_parts(message, "request")
            asked = decode_request(requests[0]) if len(requests) == 1 else None
            if asked is None:
                raise Declined("An order has one request.")
            replies, reasons = [], []
            for single in singles(asked):
                try:
                    replies.append(self._answer(work, single))
                    reasons.append("")
                except _Curable:
                    raise
                except Refused as reason:
                    replies.append(b"")
                    reasons.append(str(reason))
            work.keep()
            return sealed("answer", run, replies=replies, reasons=reasons, sums=work.replica.round)

    def _work(self, run: str, stack: ExitStack) -> _Work:
        folder = self.folder / run
        memory = storage.read(folder)
        if memory is None:
            raise _Curable(UNKNOWN_RUN, "This run is not known here.")
        desk = None
        if self.parts.planner is not None:
            desk = stack.enter_context(self._session(run, memory))
        replica = self.parts.replica(self._initial.copy(), self._aggregator)
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
        )
        client.control = memory.control
        return _Work(run, folder, memory, client, replica, desk)

    def _agree(self, work: _Work, message: Envelope) -> None:
        """Take the terms of the order, if they are those of the plan."""
        wanted, told = text(message, "terms_id"), text(message, "terms")
        known = "" if work.memory.terms is None else digest(terms_to_text(work.memory.terms))
        if wanted in ("", known):  # none are named for counts, which come before them
            return
        if not told:
            raise _Curable(NO_TERMS, "These terms are not known here.")
        try:
            terms = Terms.from_json(json.loads(told))
        except (ValueError, KeyError, TypeError) as error:
            raise Declined(f"The terms cannot be read ({type(error).__name__}).") from None
        counts = None if work.memory.counts is None else decode(work.memory.counts)
        own = counts if isinstance(counts, Counts) else None
        require_acceptable(terms, work.memory.terms, self.parts, self.me, own)
        if work.desk:
            work.desk.require_room(terms)
        work.memory = replace(work.memory, terms=terms)
        work.keep()

    def _catch_up(self, work: _Work, sums: list[Sealed]) -> None:
        """Open the sums of rounds that this holder has not seen.

        Whoever could send many sums and learn which of them open would learn about the key (the schemes are not made
        for that): after one that does not, this holder has left the run.
        """
        for one in sums:
            if one.round == work.replica.round + 1:
                try:
                    work.replica.at(one)
                except TooNoisy:
                    work.memory = replace(work.memory, left=UNOPENED)
                    work.keep()
                    raise Declined(UNOPENED) from None

    def _answer(self, work: _Work, request: Request) -> bytes:
        """The message of the answer: the stored one, or a new one, if it is what was agreed and its turn."""
        require_planned(request, self.parts, work.memory.terms, self.me)
        if isinstance(request, MeasureRequest):  # not of a private run, and the same whenever it is asked
            self._require_model(work, request)
            return encode(work.client.respond(request))
        channel, number = CHANNELS.get(type(request).__name__, "evaluation"), getattr(request, "round", None)
        place = channel if number is None else f"{channel}-{number}"
        form = hashlib.blake2b(encode_request(request), digest_size=16).hexdigest()
        told = work.desk.desk.released(0, request) if work.desk else place in work.memory.answers
        if told and work.memory.asked.get(place, form) != form:
            raise Declined(f"The {channel} were told before, for a request of another content.")
        stored = work.desk.desk.stored(0, request) if work.desk else told
        if not stored:
            self._require_turn(work, channel, number)
            self._require_model(work, request)
        work.memory = replace(work.memory, asked={**work.memory.asked, place: form})
        work.keep()  # before anything is released: the same request again gets the same answer, another one none
        if work.desk:
            message = work.desk.answer(request, work.client.respond)
            if number is not None and number >= 2:
                work.desk.forget(number - 2)
        else:
            message = work.memory.answers[place] if told else encode(work.client.respond(request))
            work.memory = _pruned(work.memory.with_answer(place, message), channel, number)
        if channel == "counts":
            work.memory = replace(work.memory, counts=message)
        return message

    def _require_turn(self, work: _Work, channel: str, number: int | None) -> None:
        """Nothing, unless a later round has been answered already, as the folder or the ledger tell."""
        latest = _latest(work.memory, channel)
        if work.desk:
            latest = max([latest, *work.desk.rounds(channel)], key=lambda r: -1 if r is None else r)
        if number is not None and latest is not None and number < latest:
            raise Declined(f"Round {number} is over: round {latest} has been answered.")

    def _require_model(self, work: _Work, request: Request) -> None:
        """Nothing, if the request's model is one that this holder can load."""
        model = getattr(request, "model", None)
        if model is None:
            return
        if isinstance(model, Sealed):
            if self.config.scheme == "plain":
                raise Declined("The plan has no encrypted sums.")
            if model.round > work.replica.round:
                raise _Curable(BEHIND, f"Sums are missing here after the first {work.replica.round}.")
            if model.round < work.replica.round:
                raise Declined(f"The model is of an earlier round: {work.replica.round} sums have been opened here.")
            return
        size, dtype = work.replica.parameters.size, work.replica.parameters.dtype
        for values in (model.values, model.control, model.snapshot):
            if values is not None and (values.shape != (size,) or values.dtype != dtype):
                raise Declined("The model has another form than agreed.")
        if self.config.scheme != "plain":
            raise Declined("The plan has encrypted sums, and no models in the open.")

    # ---- the end

    def _end(self, run: str, message: Envelope) -> Envelope:
        """Open the last sums; write the model, and what was released, into the run's folder."""
        from safetensors.torch import save

        from privfair.storage import write_bytes, write_json

        with ExitStack() as stack:
            work = self._work(run, stack)
            if work.memory.left == UNOPENED:
                raise Declined(UNOPENED)
            self._catch_up(work, read_sums(message))
            work.memory = replace(work.memory, left=OVER)  # before stored answers are let go: none is made again
            work.keep()
            result = work.replica.result
            if self.config.scheme == "plain":
                sent = byte_parts(message, "model")
                found = np.frombuffer(sent[0], dtype=result.dtype).copy() if sent else result
                if found.shape != result.shape:
                    raise Declined("The model has another form than agreed.")
                result = found
            self._model.load(result)
            state = {name: tensor.detach().clone() for name, tensor in self._model.module.state_dict().items()}
            write_bytes(work.folder / "model.safetensors", save(state))
            if work.desk and work.memory.terms is not None:
                for number in range(max(0, self.config.federation.rounds - 2), self.config.federation.rounds):
                    work.desk.forget(number)
                write_json(work.folder / "privacy.json", work.desk.statement(work.memory.terms))
            return sealed("ended", run, sums=work.replica.round)

    # ---- parts

    def _session(self, run: str, memory: Remembered | None) -> AbstractContextManager[Session]:
        name = f"{run}-{definition(self.config, self.federation.schema, None)}"
        ledger_id, rows = (None, 0) if memory is None else (memory.ledger_id, memory.rows)
        return session(self.config, self.federation, self.parts, self.me, name, ledger_id, rows)


def own_records(config: Config, name: str) -> Federation:
    """The data of one holder: its part of a dataset, or the whole of a file without a client column."""
    data = config.data
    found = load_dataset(data.name, seed=config.run.seed, test_fraction=data.test_fraction, **data.options)
    parts = {client.name: client for client in found.clients}
    if data.name == "csv" and data.options.get("client") is None:
        whole = found.clients[0]
        parts = {name: ClientData(name, whole.train, whole.test)}
    if name not in parts:
        raise InputError("client", "must have records in the data", name)
    return Federation(found.name, found.schema, (parts[name],), found.notes, found.encoder)


def _client_keys(config: Config) -> ClientKeys:
    """The holder's key; none for the plain scheme."""
    if config.scheme == "plain":
        return plain_keys(quantise=config.aggregation.quantise).client
    if config.aggregation.keys is None:
        remedy = "Make a pair with `privfair keys new DIR`, and give every data holder its client.key."
        raise InputError("aggregation.keys", f"must be given for {config.scheme}", None, remedy)
    keys = load_client(Path(config.aggregation.keys))
    if keys.scheme != config.scheme:
        raise InputError("aggregation.keys", f"must be of scheme {config.scheme}", keys.scheme)
    return keys


def _latest(memory: Remembered, channel: str) -> int | None:
    """The latest round in which something was asked on a channel."""
    rounds = [int(place.rpartition("-")[2]) for place in memory.asked if place.startswith(f"{channel}-")]
    return max(rounds, default=None)


def _pruned(memory: Remembered, channel: str, number: int | None) -> Remembered:
    """Without the answers of rounds that are over."""
    if number is None:
        return memory
    kept = {f"{channel}-{n}" for n in (number - 1, number)}
    answers = {p: a for p, a in memory.answers.items() if not p.startswith(f"{channel}-") or p in kept}
    return replace(memory, answers=answers)
