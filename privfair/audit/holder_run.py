"""A run on Flower: the same messages, as a data holder's own program answers them."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from accountant.errors import Refused
from accountant.ledger.ledger import Ledger
from accountant.ledger.machine_state import not_remembered
from privfair.audit.attack import Claimed, priced
from privfair.audit.subject import Subject
from privfair.audit.whole_run import Seen, WholeRunAttack, opened
from privfair.config import Config
from privfair.datasets.records import ClientData
from privfair.deployment.holder import Holder
from privfair.deployment.protocol import Envelope, Value, byte_parts, read_sums, text
from privfair.deployment.server import run_name, server_run
from privfair.federated.codec import decode, decode_request
from privfair.federated.exchange import singles
from privfair.federated.messages import Reply
from privfair.federated.model_state import Replica
from privfair.privacy.run_ledger import cell_labels
from privfair.run_names import beginning_of
from privfair.secure_aggregation import new_keys

NAME = "target"


class OneHolder:
    """A link to one data holder in this process: its `handle` gets the server's messages, and every one is noted."""

    def __init__(self, holder: Holder, replica: Replica) -> None:
        """`replica` opens the sums, as who has the key does."""
        self._holder, self._replica = holder, replica
        self.seen: Seen = []

    def nodes(self) -> set[int]:
        """The one that there is."""
        return {0}

    def exchange(self, messages: Mapping[int, Envelope], deadline: float) -> dict[int, Mapping[str, Value] | str]:
        """The holder's answers."""
        return {node: self._answer(message) for node, message in messages.items()}

    def _answer(self, message: Envelope) -> Envelope:
        answer = self._holder.handle(message)
        if answer["kind"] == "refused":
            raise Refused(f"The attacked data holder refused: {text(answer, 'reason')}")
        for total in read_sums(message) if message["kind"] != "hello" else ():
            self._replica.at(total)
        if message["kind"] == "order":
            asked = decode_request(byte_parts(message, "request")[0])
            for request, reply in zip(singles(asked), byte_parts(answer, "replies"), strict=True):
                found = decode(reply)
                if not isinstance(found, Reply):
                    raise TypeError(type(found).__name__)
                self.seen.append((opened(request, self._replica), found))
        return answer


class HolderAttack(WholeRunAttack):
    """One round of the plan between a real server and a real data holder with a folder and a ledger of its own.

    It differs from a simulation in everything between request and reply: release plan, state, ledger, messages.
    """

    channel: ClassVar[str] = "holder"
    about: ClassVar[str] = "all messages of one data holder on Flower in one round, with and without one record"
    fewest: ClassVar[int] = 40

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """As for a whole run; and one client's run is none of several clients pooled."""
        if subject.config.federation.method == "centralized":
            return "pooled records have no data holders"
        return WholeRunAttack.why_not(subject)

    def __init__(self, subject: Subject) -> None:
        """Both data holders, and the keys that they and the server have."""
        config, folder = subject.config, subject.folder / f"holder-{secrets.token_hex(4)}"
        folder.mkdir()
        self._keys: dict[str, Path] = {}
        if config.scheme != "plain":
            new_keys(config.scheme).save(folder / "keys")
            shutil.copy(folder / "keys" / "server.key", folder / "server.key")  # a server is refused beside client.key
            self._keys = {"holder": folder / "keys", "server": folder / "server.key"}
        tables = config.as_tables()
        tables["federation"] = {k: v for k, v in tables["federation"].items() if k != "clients_per_round"}
        tables["federation"]["rounds"] = 1
        tables["run"] |= {"clients": [NAME], "engine": "local"}
        self._tables, self._folder, self._runs = tables, folder, 0
        super().__init__(replace(subject, config=self._configured("holder")))

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """Who sees every message; the model is what it is in a simulation."""
        return {"white-box": (0, 1, 2, 3, 4)}

    def claim(self) -> Claimed:
        """Of a run in the holder's own ledger."""
        self._played(True)
        delta, planner = self._subject.config.privacy.delta, self._planner
        labels = cell_labels(self._simulation.cells, self._simulation.federation.schema)
        paid = {"", *(labels[cell] for cell in self._cells)}
        with not_remembered(), Ledger(self._ledger, create=False) as ledger:
            runs = [run for dataset in ledger.datasets() for run in ledger.runs(dataset.name)]
            rows = [spend for run in runs for _, spend in ledger.spends(run=run)]
        return priced([row for row in rows if row.group in paid], planner, delta)

    @not_remembered()  # its ledger is thrown away
    def _played(self, present: bool) -> Seen:
        """One run in a new folder: a data holder answers every request once."""
        self._runs += 1
        config, folder = self._configured("holder"), self._folder / str(self._runs)
        folder.mkdir()
        records = self._records[present]
        federation = self._subject.federation([ClientData(NAME, records, records.take([]))])
        holder = Holder(config, NAME, folder / "node", federation)
        if holder.spec.planner is None:
            raise ValueError("only private runs are attacked")
        self._planner = holder.spec.planner
        self._simulation.replica.restore(self._initial)
        # sums are opened with the tags of one run only: that of the simulation
        run_name(folder / "server", config.scheme, beginning_of(self._simulation.credentials.run))
        link = OneHolder(holder, self._simulation.replica)
        server_run(self._configured("server"), folder / "server", link).go()
        return link.seen

    @property
    def _ledger(self) -> str:
        return f"sqlite:///{self._folder}/{self._runs}/ledger.sqlite"

    def _configured(self, whose: str) -> Config:
        """The configuration of the data holder, or of the server, in the present trial."""
        run = {**self._tables["run"], "ledger": self._ledger}
        keys = {"keys": str(self._keys[whose])} if self._keys else {}
        return Config.build({**self._tables, "run": run, "aggregation": {**self._tables["aggregation"], **keys}})
