"""Flower's grid without Flower's processes: messages go through the real ClientApp, as bytes, and back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from privfair.deployment.flower.client_app import app as client_app

Meddle = Callable[[int, Message, Callable[[], Message]], Message | None]  # (node, message, answer) -> reply, if any


def honest(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
    return answer()


class MemoryGrid(Grid):
    """Nodes by id, each with its node configuration. `meddle` stands for the network: it may lose or change replies."""

    def __init__(self, nodes: dict[int, dict[str, Any]], meddle: Meddle = honest) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # what Flower's processes set
        self.nodes, self.meddle = nodes, meddle
        self.replies: dict[str, Message] = {}
        self.sent: list[tuple[int, Message]] = []

    def set_run(self, run: Any) -> None:
        """Not needed."""

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        raise NotImplementedError("deprecated by Flower")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node, id_ = message.metadata.dst_node_id, str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = id_
            self.sent.append((node, message))
            if node in self.nodes:
                context = Context(1, node, self.nodes[node], RecordDict(), {})
                arrived = RecordDict.inflate(message.content.deflate(), children=_children(message.content))
                message = Message(arrived, node, message.metadata.message_type)
                message.metadata.__dict__["_message_id"] = id_

                def answer(message: Message = message, context: Context = context) -> Message:
                    return client_app(message, context)

                reply = self.meddle(node, message, answer)
                if reply is not None:
                    self.replies[id_] = reply
            ids.append(id_)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(id_) for id_ in message_ids if id_ in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def _children(content: RecordDict) -> dict[str, Any]:
    return {name: type(child).inflate(child.deflate()) for name, child in (content.children or {}).items()}


def node_configs(folder: Path, names: list[str], configs: list[Path]) -> dict[int, dict[str, Any]]:
    """Node 1, 2, … for the clients in order."""
    return {
        100 + k: {"client": name, "config": str(path), "folder": str(folder / f"node-{k}")}
        for k, (name, path) in enumerate(zip(names, configs, strict=True))
    }
