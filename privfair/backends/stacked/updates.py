"""What a client sends after local training that the engine did for it."""

from __future__ import annotations

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.clients.client import Client
from privfair.clients.steps import Trained
from privfair.messages import Parameters, TrainRequest, Update


def update(
    client: Client, request: TrainRequest, at: Parameters, shift: FloatArray | None, trained: Trained | None
) -> Update:
    """As the client itself makes it."""
    if trained is None:
        raise InputError(f"update of client {client.name!r}", "must have been trained", "nothing")
    return client.update(request, at, shift, trained)
