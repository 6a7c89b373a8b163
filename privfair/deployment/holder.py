"""A data holder: its records, its ledger, its folder, the plan it agreed to, and its answers to the server.

Whether it agrees to a plan: `acceptance`. Whether a request is that of the plan:
`privfair.channels.base.require_planned`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from accountant.errors import InputError, Refused
from privfair.channels.base import Declined, channel_of, registered, require_planned, respond, round_of
from privfair.channels.counts import COUNTS
from privfair.channels.updates import require_features
from privfair.clients.client import Client
from privfair.config import Config
from privfair.datasets.records import Federation
from privfair.deployment import holder_state as storage
from privfair.deployment.acceptance import require_acceptable
from privfair.deployment.holder_state import HolderState, own_records
from privfair.deployment.protocol import (
    BEHIND,
    FINAL,
    NO_TERMS,
    UNKNOWN_RUN,
    Envelope,
    byte_parts,
    deployed,
    differences,
    digest,
    holders,
    masks_of,
    read_sums,
    refusal,
    require_kind,
    schema_to_text,
    sealed,
    settled_plan,
    shared_plan,
    text,
)
from privfair.deployment.sums import NumberedFeatures, read_features
from privfair.federated.exchange import decode, decode_request, encode, encode_masking, encode_request, singles
from privfair.federated.messages import (
    BlockLost,
    Counts,
    MaskingRequest,
    Reply,
    Request,
    RosterRequest,
    RosterSigned,
    Sealed,
    UnmaskSumRequest,
    in_a_sum,
)
from privfair.federated.model_state import STRENGTHS, Replica
from privfair.federated.release_plan import RELEASE_PLANS, ReleasePlan, terms_digest
from privfair.models import exported
from privfair.numbers import finite
from privfair.privacy.ledger_gateway import LedgerGateway
from privfair.privacy.requirements import require_decided, require_new, require_separate, whole_noise
from privfair.privacy.run_ledger import ROSTERS, SURVIVORS, RunLedger, named_run, require_no_budget
from privfair.privacy.statement import account, collusion, noise, total_epsilon
from privfair.runs.assembly import RunSpec
from privfair.runs.folder import weights_file
from privfair.runs.keys import client_key, own_identity
from privfair.secure_aggregation import Forged, TooNoisy, require_resumable
from privfair.secure_aggregation.ciphertext import Ciphertext
from privfair.secure_aggregation.masked import Masking
from privfair.secure_aggregation.masking import MaskingHolder
from privfair.secure_aggregation.masks import MaskingRefused
from privfair.util import FloatArray, write_bytes, write_json

LOST = "Its answer was masked before, and the bytes are lost. A mask serves once: it is absent from this sum."
UNOPENED = "This data holder has left the run: a sum could not be opened."
OVER = "The run is over."


class Curable(Refused):
    """A refusal about which the server can do something: it sends what is missing."""

    def __init__(self, code: str, reason: str) -> None:
        """The code tells what is missing."""
        super().__init__(reason)
        self.code = code


@dataclass
class HolderRun:
    """One run at a data holder, while it answers a message."""

    spec: RunSpec
    folder: Path  # of the run
    memory: HolderState
    client: Client
    run_ledger: RunLedger | None  # None, as the gateway: no privacy
    gateway: LedgerGateway | None
    masking: MaskingHolder | None = None  # None: nothing is masked

    @property
    def me(self) -> int:
        """The holder's number in the plan."""
        return self.client.index

    @property
    def replica(self) -> Replica:
        """The shared model."""
        return self.client.replica

    def keep(self) -> None:
        """Write down what is remembered now."""
        rows = self.run_ledger.rows(self.client.name) if self.run_ledger else 0
        self.memory = replace(self.memory, replica=self.replica.state(), control=self.client.control, rows=rows)
        storage.write(self.folder, self.memory)

    # ---- masks

    def masks(self, request: MaskingRequest) -> bytes:
        """The answer to what the protocol of masks asks, durable before it leaves.

        What must be answered once goes into the ledger first: which roster was signed, and for which survivors of a sum
        this holder opened shares. A state folder that was put back to an earlier day does not know; the ledger does.
        """
        if self.client.masking is None:
            raise Declined("The plan has no masks.")
        reply = self.client.masking.answer(request)
        if isinstance(request, RosterRequest) and isinstance(reply, RosterSigned):
            self._settle(ROSTERS, request.block, reply.roster, "Another roster of this block was signed before.")
        if isinstance(request, UnmaskSumRequest):
            survivors = hashlib.sha256(np.sort(request.survivors).tobytes()).digest()
            reason = "Another set of survivors of this sum was answered before."
            self._settle(SURVIVORS, request.number, survivors, reason)
        self.keep_masks()
        return encode_masking(reply)

    def _settle(self, channel: str, number: int, content: bytes, otherwise: str) -> None:
        """Write down, for good, that this is the one; raise if another one was."""
        if self.gateway and self.gateway.settled(0, channel, number, content) != content:
            raise Declined(otherwise)

    def keep_masks(self) -> None:
        """Write down mask keys, shares and what was answered."""
        if self.masking is not None:
            storage.write_masks(self.folder, self.masking.kept())

    def forget_masks(self) -> None:
        """Delete mask keys and shares: this holder has left the run, or it is over."""
        storage.forget_masks(self.folder)

    def _require_maskable(self, request: Request, *, stored: bool) -> None:
        """Raise, before anything is paid, unless the answer can be masked: a mask serves once, whatever was lost."""
        if self.masking is None or stored or not in_a_sum(request):
            return
        if self.gateway and self.gateway.made(0, request.channel, round_of(request)):
            raise Declined(LOST)
        try:
            self.masking.require_open(self.spec.sum_number(request.channel, round_of(request)))
        except MaskingRefused as refused:
            raise Declined(str(refused)) from None

    # ---- terms, sums and answers

    def agree(self, message: Envelope) -> None:
        """Take the terms of the order, if they are those of the plan."""
        wanted, reported = text(message, "terms_id"), text(message, "terms")
        known = "" if self.memory.release_plan is None else digest(RELEASE_PLANS.to_text(self.memory.release_plan))
        if wanted in ("", known):  # none are named for counts, which come before them
            return
        if not reported:
            raise Curable(NO_TERMS, "These terms are not known here.")
        try:
            release_plan = RELEASE_PLANS.from_text(reported)
        except InputError as error:
            raise Declined(f"The terms cannot be read: {error}") from None
        require_acceptable(release_plan, self.memory.release_plan, self.spec, self.me, self._own_counts())
        if self.gateway:
            self.spec.require_room(self.run_ledger, {self.me: self.gateway.prices[0]}, release_plan)
        self.memory = replace(self.memory, release_plan=release_plan)
        self.keep()
        if release_plan.scaled:
            self.client.scale(release_plan.scaling)
        if self.client.masking is not None:
            self.client.masking.agreed(terms_digest(release_plan))

    def _own_counts(self) -> Counts | None:
        """The counts that this holder released in this run, as its folder or its ledger has them; None: none so far."""
        message = self.memory.counts
        if message is None and self.gateway:
            message = self.gateway.stored(0, COUNTS, None)
        counts = None if message is None else decode(message)
        return counts if isinstance(counts, Counts) else None

    def catch_up(self, sums: list[Sealed], features: list[NumberedFeatures] | None = None) -> None:
        """Open the sums of rounds that this holder has not seen, and in their turn the features that λ follows.

        Whoever could send many sums and learn which of them open would learn about the key (the schemes are not made
        for that): after one that does not, this holder has left the run.
        """
        self._follow(features or [])
        for one in sums:
            if one.round == self.replica.round + 1:
                if self.memory.release_plan is None or one.step != self.memory.release_plan.sum_step(_round_of(one)):
                    raise Declined("The sums are not on the agreed grid.")
                try:
                    self.replica.at(one)
                except (TooNoisy, Forged):
                    raise self._left() from None
                self._follow(features or [])

    def _follow(self, features: list[NumberedFeatures]) -> None:
        """Open the features of rounds in whose training this holder had no part: λ follows those of every round."""
        controller, release_plan = self.replica.controller, self.memory.release_plan
        for one in features:
            if controller is None or release_plan is None or one.round != controller.round:
                continue
            if one.features.within not in (None, self.replica.round):
                continue
            require_features(one.features, one.round, release_plan, self.spec)
            try:
                self.client.features.open(one.features, one.round, self.replica)
            except (TooNoisy, Forged):
                raise self._left() from None

    def _left(self) -> Declined:
        """The refusal of a holder that leaves the run, which is written down."""
        self.memory = replace(self.memory, left=UNOPENED)
        self.keep()
        self.forget_masks()
        return Declined(UNOPENED)

    def answer(self, request: Request) -> bytes:
        """The message of the answer: the stored one, or a new one, if it is what was agreed and its turn."""
        require_planned(request, self.spec, self.memory.release_plan, self.me)
        if self.gateway is None and channel_of(request).phase == "on demand":  # the same whenever it is asked
            self._require_model(request)
            return encode(respond(self.client, request))
        channel, number = request.channel, round_of(request)
        place = channel if number is None else f"{channel}-{number}"
        form = hashlib.blake2b(encode_request(request), digest_size=16).hexdigest()
        reported = self.gateway.released(0, request) if self.gateway else place in self.memory.answers
        stored = self.gateway.stored(0, channel, number) if self.gateway else reported
        known = self.memory.asked.get(place, form)
        if reported and known != form and (known or not stored):  # unknown content: only the same answer again
            raise Declined(f"The {channel} were told before, for a request of another content.")
        if not stored:
            self._require_turn(channel, number)
            self._require_model(request)
            self._require_followed(request)
            self._require_openable(request)
        self._require_maskable(request, stored=bool(stored))
        self.memory = replace(self.memory, asked={**self.memory.asked, place: form})
        self.keep()  # before anything is released: the same request again gets the same answer, another one none
        if self.gateway:
            message = encode(self.gateway.answer([(0, request)], lambda _, asked: self._made(asked))[0])
            if number is not None and number >= 2:
                self._forget(number - 2)
        else:
            message = self.memory.answers[place] if reported else encode(self._made(request))
            self.memory = _pruned(self.memory.with_answer(place, message), channel, number)
        if channel == COUNTS:
            self.memory = replace(self.memory, counts=message)
        return message

    def _made(self, request: Request) -> Reply:
        """A new answer. That its mask is used up is written down before its bytes are: if those are lost, they are."""
        reply = respond(self.client, request)
        self.keep_masks()
        return reply

    def _require_followed(self, request: Request) -> None:
        """Raise if λ has not followed the rounds before this one: the server sends their features."""
        controller, training = self.replica.controller, channel_of(request).phase == "training"
        if controller is not None and training and (round_of(request) or 0) > controller.round:
            raise Curable(BEHIND, f"Sums of features are missing here after those of {controller.round} rounds.")

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
        """Raise if a later round has been answered already, by what the folder or the ledger has."""
        asked = [place.rpartition("-") for place in self.memory.asked]
        rounds = [int(found) for known, _, found in asked if known == channel]
        if self.run_ledger:
            rows = [spend for spend in self.run_ledger.spends(self.client.name) if spend.channel == channel]
            rounds += [spend.round for spend in rows if spend.round is not None]
        if number is not None and number < (latest := max(rounds, default=number)):
            raise Declined(f"Round {number} is over: round {latest} has been answered.")

    def _require_model(self, request: Request) -> None:
        """Raise if the request's model is not one that this holder can load."""
        model = getattr(request, "model", None)
        if model is None:
            return
        if isinstance(model, Sealed):
            if self.spec.config.scheme == "plain":
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
        if self.spec.config.scheme != "plain":
            raise Declined("The plan has encrypted sums, and no models in the open.")

    def _forget(self, round_number: int) -> None:
        """Let go of the stored messages of a round that is over; their prices stay."""
        if self.run_ledger is None:
            return
        ledger, run, client = self.run_ledger.ledger, self.run_ledger.run, self.client.name
        for channel in (channel.name for channel in registered() if channel.in_rounds):
            found = ledger.reservations(run=run, round=round_number, client=client, channel=channel)
            if found:
                ledger.discard_message(*(reservation.token for reservation in found))

    def end(self, result: FloatArray) -> None:
        """Write the model and, of a private run, what was released; stored messages are let go of."""
        model, rounds = self.client.model, self.spec.config.federation.rounds
        scaling = None if self.memory.release_plan is None else self.memory.release_plan.scaling
        model.load(result)
        write_bytes(self.folder / "model.safetensors", weights_file(exported(model.module, scaling)))
        if self.run_ledger and self.memory.release_plan is not None:
            for number in range(max(0, rounds - 2), rounds):
                self._forget(number)
            write_json(self.folder / "privacy.json", self._statement(self.run_ledger, self.memory.release_plan))

    def _statement(self, run_ledger: RunLedger, release_plan: ReleasePlan) -> dict[str, Any]:
        """What this holder released in the run, and what bounds it: the plan, as long as it was kept.

        Who takes part in which round is not in this holder's hands: nothing less than the plan is claimed.
        """
        planner, config, claim, gateway = self.spec.planner, self.spec.config, release_plan.claim, self.gateway
        if planner is None or claim is None or gateway is None:
            raise ValueError("a run without privacy has no statement")
        ledger, mine = run_ledger.ledger, run_ledger.spends(self.client.name)
        accountant, prices = account(mine, planner.neighbouring), {self.me: gateway.prices[0]}
        total = total_epsilon(config, release_plan, mine, plan=self.spec.plan, prices=prices, absent=True)
        spent, head, inferred = accountant.by_channel(claim.delta), ledger.head(), self.spec.schema.inferred
        bounded = math.isfinite(total.pld) and not total.broken
        return {
            "client": self.client.name,
            "private": bounded and not (run_ledger.seeded or inferred),
            "claim": total.broken,
            "epsilon": finite({"rdp": total.rdp, "pld": total.pld}),
            "epsilon_of": total.of,
            "delta": claim.delta,
            "adjacency": str(planner.adjacency),
            "unit": str(planner.unit),
            "seeded": run_ledger.seeded,
            "schema_inferred": inferred,
            "beyond_plan": list(total.beyond),
            "spent_by_channel": finite(spent),
            "noise": noise(release_plan, config, planner.work),
            "collusion": collusion(release_plan, planner),
            **({"whole_noise": own} if (own := whole_noise(config)) else {}),
            "ledger": {
                "url": ledger.url,
                "id": ledger.ledger_id,
                "dataset": run_ledger.dataset,
                "run": run_ledger.run,
                "rows": len(mine),
                "head": head.hash,
                "head_row": head.sequence,
            },
        }


def _round_of(one: Sealed) -> int:
    """The round in which a sum's contributions were asked for, which its check values bind: not each round has one."""
    header = Ciphertext.from_bytes(one.total, "sum").header
    return header.round if header.contributors else one.round - 1


def _pruned(memory: HolderState, channel: str, number: int | None) -> HolderState:
    """Without the answers of rounds that are over."""
    if number is None:
        return memory
    kept = {f"{channel}-{n}" for n in (number - 1, number)}
    answers = {p: a for p, a in memory.answers.items() if not p.startswith(f"{channel}-") or p in kept}
    return replace(memory, answers=answers)


WITHHELD = "Its budget or its ledger does not allow it; its own log says more."
RUN_NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")


class Holder:
    """One data holder. `handle` is its only door."""

    def __init__(self, config: Config, name: str, folder: Path, federation: Federation | None = None) -> None:
        """Load the records and the key; nothing is released yet. `federation`: instead of the configured records."""
        names = holders(config)
        if name not in names:
            raise InputError("client", f"must be one of run.clients, {', '.join(names)}", name)
        require_decided(config)
        self.name, self.folder, self.me = name, folder, names.index(name)
        self.federation = own_records(config, name) if federation is None else federation
        self.spec = RunSpec.of(deployed(config), self.federation.schema, len(names))
        planner, named = self.spec.planner, "evaluation_share" in config.privacy.model_fields_set
        if federation is not None and planner is not None and planner.sided and not named:
            rule = "must be named where records are given: nobody knows whether each is on one side of the division"
            raise InputError("privacy.evaluation_share", rule, None, "Name 0.05 in everybody's configuration.")
        self.config = config = self.spec.config
        if self.spec.planner is not None:
            self.spec.planner.require_delta()
            require_separate(self.spec.cells.notion, self.federation)
        self._model, self._keys = self.spec.model(), client_key(config)
        masks = masks_of(config, "", self.federation.schema)  # a plan without everybody's public keys is refused
        self._identity = None if masks is None else own_identity(config, name)
        self._initial = self._model.parameters()

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
        except MaskingRefused as wanted:  # it speaks of the protocol's messages alone
            return self._refusal(message, self._said(Declined(str(wanted))))
        except Curable as wanted:
            return self._refusal(message, str(wanted), wanted.code)
        except Refused as reason:
            return self._refusal(message, self._said(reason))
        except Exception:  # noqa: BLE001 - what it is may depend on records: it stays here
            traceback.print_exc(file=sys.stderr)
            return self._refusal(message, "It could not answer; its own log says why.")

    def _refusal(self, message: Envelope, reason: str, code: str = FINAL) -> Envelope:
        return refusal(reason, client=self.name, code=code, **self._opened(message))

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
        apart = differences(shared_plan(self.config), settled_plan(theirs, self.federation.schema))
        if apart:
            raise Declined(f"The plans differ: {'; '.join(apart)}.")
        if self._memory(run) is None:
            require_new(self.config)
            if self.spec.planner is None:
                require_no_budget(self.config, self.federation)
            with self._ledger(run, HolderState()) as (run_ledger, gateway):
                self._require_only_run(run, budgeted=run_ledger is not None and run_ledger.budgeted)
                if gateway is not None:
                    self.spec.require_room(run_ledger, {self.me: gateway.prices[0]})
                ledger_id = None if run_ledger is None else run_ledger.ledger.ledger_id
            storage.write(self.folder / run, HolderState(ledger_id=ledger_id))
        schema = schema_to_text(self.federation.schema)
        return sealed("here", run, client=self.name, schema=schema, **self._opened(message))

    def _require_only_run(self, run: str, *, budgeted: bool) -> None:
        """Without a lifetime budget nothing but this bounds how often a server starts anew."""
        others = [path.parent.name for path in self.folder.glob(f"*/{storage.FILE}") if path.parent.name != run]
        if others and not budgeted:
            raise Refused(
                f"This data holder took part in the run {others[0]}, and its data have no lifetime budget: another run "
                "needs one (privfair budget set), or a new folder."
            )

    def _opened(self, message: Mapping[str, object]) -> dict[str, int]:
        """How many sums this holder has opened in the run: of updates, and, where λ follows them, of features."""
        run = message.get("run")
        memory = storage.read(self.folder / run) if isinstance(run, str) and RUN_NAME.fullmatch(run) else None
        known = {} if memory is None or memory.replica is None else memory.replica
        counts = {"sums": int(known["round"][0]) if known else 0}
        followed = {"features": len(known.get(STRENGTHS, ()))} if self.config.fairness.target is not None else {}
        return {**counts, **followed}

    # ---- orders

    def _order(self, run: str, message: Envelope) -> Envelope:
        with self._run(run) as work:
            requests = byte_parts(message, "request")
            asked = decode_request(requests[0]) if len(requests) == 1 else None
            if work.memory.left:
                if not isinstance(asked, MaskingRequest) or isinstance(asked, UnmaskSumRequest):
                    raise Declined(work.memory.left)
                gone = encode_masking(BlockLost(asked.block))  # so that nobody waits for it, or pays
                return sealed("answer", run, replies=[gone], reasons=[""], sums=work.replica.round)
            work.agree(message)
            work.catch_up(read_sums(message), read_features(message))
            if asked is None:
                raise Declined("An order has one request.")
            if isinstance(asked, MaskingRequest):
                return sealed("answer", run, replies=[work.masks(asked)], reasons=[""], **work.replica.opened)
            replies, reasons = [], []
            places = [(single.channel, round_of(single)) for single in singles(asked)]
            if len(set(places)) < len(places):
                raise Declined("A message asks twice for the same.")
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
            return sealed("answer", run, replies=replies, reasons=reasons, **work.replica.opened)

    # ---- the end

    def _end(self, run: str, message: Envelope) -> Envelope:
        """Open the last sums; write the model, and what was released, into the run's folder."""
        with self._run(run) as work:
            if work.memory.left == UNOPENED:
                raise Declined(UNOPENED)
            work.catch_up(read_sums(message))
            work.memory = replace(work.memory, left=OVER)  # before stored answers are let go: none is made again
            work.keep()
            work.forget_masks()
            result = work.replica.result
            if self.config.scheme == "plain":
                sent = byte_parts(message, "model")
                found = np.frombuffer(sent[0], dtype=result.dtype).copy() if sent else result
                if found.shape != result.shape:
                    raise Declined("The model has another form than agreed.")
                result = found
            if not np.isfinite(result).all():
                raise Declined("The model has weights that are not finite.")
            work.end(result)
            return sealed("ended", run, **work.replica.opened)

    # ---- what a message is answered with

    def _memory(self, run: str) -> HolderState | None:
        """What is remembered of a run; one that was begun with messages of an earlier version is refused."""
        memory = storage.read(self.folder / run)
        if memory is not None and not memory.left:
            try:
                require_resumable(self.config.scheme, memory.messages)
            except InputError as error:
                raise Declined(str(error)) from None
        return memory

    @contextmanager
    def _ledger(self, run: str, memory: HolderState) -> Iterator[tuple[RunLedger | None, LedgerGateway | None]]:
        """The ledger of a private run, open; one that lacks rows it had before is refused."""
        name = named_run(run, self.config, self.federation.schema, None)
        run_ledger = self.spec.open_ledger(self.federation, name, memory.ledger_id)
        if run_ledger is None:
            yield None, None
            return
        try:
            gateway = self.spec.gateway(run_ledger, self.federation.clients, planner_sees_ledger=False)
            if run_ledger.rows(self.name) < memory.rows:
                raise Refused("The ledger is an older copy: rows of this run are missing. Put the newer one back.")
            yield run_ledger, gateway
        finally:
            run_ledger.ledger.close()

    @contextmanager
    def _run(self, run: str) -> Iterator[HolderRun]:
        """A run that is known here, as it was after the last message."""
        memory = self._memory(run)
        if memory is None:
            raise Curable(UNKNOWN_RUN, "This run is not known here.")
        with self._ledger(run, memory) as (run_ledger, gateway):
            masking = self._masking(run, memory)
            opener, embedder = self.spec.client_side(self._keys, run, masking)
            replica = self.spec.replica(self._initial.copy(), opener)
            if memory.replica is not None:
                replica.restore(memory.replica)
            client = self.spec.client(self.me, self.federation.clients[0], self._model, replica, embedder, masking)
            client.control = memory.control
            if memory.release_plan is not None and memory.release_plan.scaled:
                client.scale(memory.release_plan.scaling)
            holder = None if masking is None else masking.holders[self.me]
            yield HolderRun(self.spec, self.folder / run, memory, client, run_ledger, gateway, holder)

    def _masking(self, run: str, memory: HolderState) -> Masking | None:
        """This holder's masks, as it left them, under the terms that it agreed to."""
        about = masks_of(self.config, run, self.federation.schema)
        if about is None or self._identity is None:
            return None
        masking = Masking.of(about, self.me, self._identity)
        holder = masking.holders[self.me]
        holder.restore(storage.read_masks(self.folder / run))
        if memory.release_plan is not None:
            holder.terms = terms_digest(memory.release_plan)
        return masking
