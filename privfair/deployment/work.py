"""A data holder's work on one message: agree to terms, catch up with sums, answer requests once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from accountant.errors import InputError, Refused
from privfair.aggregation import Forged, TooNoisy
from privfair.clients.client import Client
from privfair.deployment import memory as storage
from privfair.deployment.agreement import Declined, require_acceptable, require_planned
from privfair.deployment.envelopes import BEHIND, NO_TERMS, Envelope, text
from privfair.deployment.memory import Remembered
from privfair.deployment.plan import digest, terms_to_text
from privfair.deployment.session import Session
from privfair.messages import Counts, MeasureRequest, Request, Sealed, TrainRequest
from privfair.parts import Parts
from privfair.replica import Replica
from privfair.request_wire import encode_request
from privfair.terms import Terms
from privfair.wire import decode, encode

CHANNELS = {
    "CountsRequest": "counts",
    "ScoresRequest": "predictions",
    "EmbeddingsRequest": "embeddings",
    "TrainRequest": "updates",
}
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

    parts: Parts
    me: int
    folder: Path  # of the run
    memory: Remembered
    client: Client
    replica: Replica
    desk: Session | None

    def keep(self) -> None:
        """Write down what is remembered now."""
        rows = self.desk.rows if self.desk else 0
        self.memory = replace(self.memory, replica=self.replica.state(), control=self.client.control, rows=rows)
        storage.write(self.folder, self.memory)

    def agree(self, message: Envelope) -> None:
        """Take the terms of the order, if they are those of the plan."""
        wanted, told = text(message, "terms_id"), text(message, "terms")
        known = "" if self.memory.terms is None else digest(terms_to_text(self.memory.terms))
        if wanted in ("", known):  # none are named for counts, which come before them
            return
        if not told:
            raise Curable(NO_TERMS, "These terms are not known here.")
        try:
            terms = Terms.from_json(json.loads(told))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise Declined(f"The terms cannot be read ({type(error).__name__}).") from None
        require_acceptable(terms, self.memory.terms, self.parts, self.me, self._own_counts())
        if self.desk:
            self.desk.require_room(terms)
        self.memory = replace(self.memory, terms=terms)
        self.keep()

    def _own_counts(self) -> Counts | None:
        """The counts that this holder released in this run, as its folder or its ledger has them; None: none so far."""
        message = self.memory.counts
        if message is None and self.desk:
            message = self.desk.released_counts()
        counts = None if message is None else decode(message)
        return counts if isinstance(counts, Counts) else None

    def catch_up(self, sums: list[Sealed]) -> None:
        """Open the sums of rounds that this holder has not seen.

        Whoever could send many sums and learn which of them open would learn about the key (the schemes are not made
        for that): after one that does not, this holder has left the run.
        """
        for one in sums:
            if one.round == self.replica.round + 1:
                if self.memory.terms is None or one.step != self.memory.terms.sum_step:
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
        require_planned(request, self.parts, self.memory.terms, self.me)
        if isinstance(request, MeasureRequest):  # not of a private run, and the same whenever it is asked
            self._require_model(request)
            return encode(self.client.respond(request))
        channel, number = CHANNELS.get(type(request).__name__, "evaluation"), getattr(request, "round", None)
        place = channel if number is None else f"{channel}-{number}"
        form = hashlib.blake2b(encode_request(request), digest_size=16).hexdigest()
        told = self.desk.desk.released(0, request) if self.desk else place in self.memory.answers
        if told and self.memory.asked.get(place, form) != form:
            raise Declined(f"The {channel} were told before, for a request of another content.")
        stored = self.desk.desk.stored(0, request) if self.desk else told
        if not stored:
            self._require_turn(channel, number)
            self._require_model(request)
            self._require_openable(request)
        self.memory = replace(self.memory, asked={**self.memory.asked, place: form})
        self.keep()  # before anything is released: the same request again gets the same answer, another one none
        if self.desk:
            message = self.desk.answer(request, self.client.respond)
            if number is not None and number >= 2:
                self.desk.forget(number - 2)
        else:
            message = self.memory.answers[place] if told else encode(self.client.respond(request))
            self.memory = _pruned(self.memory.with_answer(place, message), channel, number)
        if channel == "counts":
            self.memory = replace(self.memory, counts=message)
        return message

    def _require_openable(self, request: Request) -> None:
        """Nothing, if the features of a training request can be opened; as for other sums, one that cannot is the last.

        They are opened once: the client finds them opened when it trains.
        """
        if isinstance(request, TrainRequest):
            try:
                self.client.opened(request)
            except (TooNoisy, Forged):
                raise self._left() from None
            except InputError as error:  # it names what the server sent, and nothing of the records
                raise Declined(f"The shared features are not the agreed ones: {error}") from None

    def _require_turn(self, channel: str, number: int | None) -> None:
        """Nothing, unless a later round has been answered already, as the folder or the ledger tell."""
        latest = _latest(self.memory, channel)
        if self.desk:
            latest = max([latest, *self.desk.rounds(channel)], key=lambda r: -1 if r is None else r)
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
