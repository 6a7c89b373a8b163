"""A data holder: its records, its ledger, its folder, the plan it agreed to, and its answers to the server."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from accountant.errors import InputError, Refused
from privfair.aggregation import ClientAggregator, require_resumable
from privfair.attendance import singles
from privfair.clients.client import Client
from privfair.clients.embedder import Embedder
from privfair.config import Config
from privfair.datasets.records import Federation
from privfair.deployment import memory as storage
from privfair.deployment.agreement import Declined
from privfair.deployment.envelopes import (
    FINAL,
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
from privfair.deployment.plan import differences, holders, schema_to_json, shared_plan
from privfair.deployment.possessions import own_key, own_records
from privfair.deployment.session import Session, session
from privfair.deployment.work import OVER, UNOPENED, Curable, Work
from privfair.parts import Parts
from privfair.privacy.books import entropy_of, named_run, require_no_budget
from privfair.privacy.pricing import EMBEDDINGS, UPDATES
from privfair.privacy.refusals import require_decided, require_separate
from privfair.request_wire import decode_request

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
        self.parts = Parts.of(config, self.federation.schema, len(names))
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
        desk = None
        if self.parts.planner is not None:
            desk = stack.enter_context(self._session(run, memory))
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
        return Work(self.parts, self.me, folder, memory, client, replica, desk)

    # ---- the end

    def _end(self, run: str, message: Envelope) -> Envelope:
        """Open the last sums; write the model, and what was released, into the run's folder."""
        from privfair.storage import write_bytes, write_json
        from privfair.trained import weights_file

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
            if work.desk and work.memory.terms is not None:
                for number in range(max(0, self.config.federation.rounds - 2), self.config.federation.rounds):
                    work.desk.forget(number)
                write_json(work.folder / "privacy.json", work.desk.statement(work.memory.terms))
            return sealed("ended", run, sums=work.replica.round)

    # ---- parts

    def _memory(self, run: str) -> Remembered | None:
        """What is remembered of a run; one that was begun with messages of an earlier version is refused."""
        memory = storage.read(self.folder / run)
        if memory is not None and not memory.left:
            try:
                require_resumable(self.config.scheme, memory.messages)
            except InputError as error:
                raise Declined(str(error)) from None
        return memory

    def _session(self, run: str, memory: Remembered | None) -> AbstractContextManager[Session]:
        name = named_run(run, self.config, self.federation.schema, None)
        ledger_id, rows = (None, 0) if memory is None else (memory.ledger_id, memory.rows)
        return session(self.config, self.federation, self.parts, self.me, name, ledger_id, rows)
