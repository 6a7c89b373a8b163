"""Our messages over Flower's grid: envelopes as config records, nodes by their ids, a deadline for every exchange."""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from privfair.deployment.protocol import Envelope, Value

RECORD = "privfair"
KIND = "query.privfair"  # Flower's message type: a category of its own, and our action
POLL = 0.2  # seconds between two looks for replies
AFTER = 60.0  # seconds that Flower keeps a message after its deadline, for the clocks of several machines


class GridLink:
    """A `privfair.deployment.remote.Link` over a Flower grid."""

    def __init__(self, grid: Grid, *, poll: float = POLL) -> None:
        """Over a run that has begun."""
        self._grid, self._poll = grid, poll

    def nodes(self) -> set[int]:
        """Who is connected now."""
        return set(self._grid.get_node_ids())

    def exchange(self, messages: Mapping[int, Envelope], deadline: float) -> dict[int, Mapping[str, Value] | str]:
        """What each node answered, or why it did not."""
        end = time.monotonic() + deadline
        found: dict[int, Mapping[str, Value] | str] = {}
        waiting: dict[str, int] = {}  # node by the id of its message
        for node, envelope in messages.items():
            message = Message(wrap(envelope), node, KIND, ttl=deadline + AFTER)
            ids = [id_ for id_ in self._grid.push_messages([message]) if id_]  # one by one: which failed is known
            waiting |= dict.fromkeys(ids, node)
            if not ids:
                found[node] = "Its message could not be sent."
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                asked = reply.metadata.reply_to_message_id
                if asked in waiting:
                    answer = f"Its node failed ({_reason(reply.error)})." if reply.has_error() else unwrap(reply)
                    found[waiting.pop(asked)] = answer
            if waiting and time.monotonic() > end:
                return found | dict.fromkeys(waiting.values(), f"It did not answer within {deadline:.0f} s.")
            if waiting:
                time.sleep(self._poll)
        return found


def wrap(envelope: Envelope) -> RecordDict:
    """An envelope as Flower's content."""
    return RecordDict({RECORD: ConfigRecord(dict(envelope))})


def unwrap(message: Message) -> Mapping[str, Value] | str:
    """The envelope in a Flower message, or why there is none."""
    if not message.has_content() or RECORD not in message.content.config_records:
        return "Its reply was not one of privfair's."
    return dict(message.content.config_records[RECORD].items())


def _reason(error: Error) -> str:
    return f"code {error.code}"  # the text may be anything: it stays in the node's log
