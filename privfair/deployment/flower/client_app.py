"""The ClientApp: hands every message to the data holder whose configuration the node names.

Node configuration: client (its name), config (its TOML file), folder (where it keeps what it remembers of runs).
"""

from __future__ import annotations

import sys
import traceback
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from privfair.config import Config
from privfair.deployment.flower.link import unwrap, wrap
from privfair.deployment.holder import Holder
from privfair.deployment.protocol import Envelope, refusal

ACTION = "privfair"

app = ClientApp()


@app.query(ACTION)
def answer(message: Message, context: Context) -> Message:
    """The holder's answer; whatever goes wrong is a refusal whose details stay in the node's own log."""
    return Message(wrap(_answer(message, context)), reply_to=message)


def _answer(message: Message, context: Context) -> Envelope:
    envelope = unwrap(message)
    if isinstance(envelope, str):
        return refusal("This is no message of privfair.")
    client = str(context.node_config.get("client", ""))
    try:
        config, folder = (str(context.node_config[key]) for key in ("config", "folder"))
        holder = _holder(client, config, Path(config).read_text(encoding="utf-8"), folder)
    except Exception:  # noqa: BLE001 - what it is may depend on records: it stays here
        traceback.print_exc(file=sys.stderr)
        return refusal("It could not be set up; its own log says why.", client=client)
    torch.set_num_threads(1)  # small models: the fastest, and the same results as in one process
    return holder.handle(envelope)


@lru_cache(maxsize=64)
def _holder(client: str, path: str, content: str, folder: str) -> Holder:
    """The holder of a configuration; read again when its file changes."""
    return Holder(Config.read(Path(path)), client, Path(folder))
