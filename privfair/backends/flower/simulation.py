"""The same app on Flower's simulation engine (Ray): many data holders as actors of one program."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from privfair.backends.flower.client_app import ACTION, answer
from privfair.backends.flower.federation import Node
from privfair.backends.flower.launch import failure
from privfair.backends.flower.server_app import serve

POLL = 0.01  # seconds: everything is in this program


def simulate(config: Path, out: Path, nodes: Sequence[Node]) -> None:
    """Return when the run has ended well; otherwise raise what the server said."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, config, out, poll=POLL)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    ended = None
    try:
        run_simulation(server, client_of(nodes), len(nodes), backend_config=resources)  # type: ignore[arg-type]
    except RuntimeError as error:  # what went wrong at the server is in its own words in error.json
        ended = str(error)
    if ended is not None or not (out / "metrics.json").is_file():
        raise failure(out, ended or "no result", out)


def client_of(nodes: Sequence[Node]) -> ClientApp:
    """The ClientApp of all holders: Flower numbers its simulated nodes, and the number is the holder's."""
    about = [{"client": n.client, "config": str(n.config), "folder": str(n.folder)} for n in nodes]
    app = ClientApp()

    @app.query(ACTION)
    def by_number(message: Message, context: Context) -> Message:
        context.node_config.update(about[int(context.node_config["partition-id"])])
        return answer(message, context)

    return app
