"""The same app on Flower's simulation engine (Ray): many data holders as actors of one program, in a child process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from privfair.backends.flower.federation import Node
from privfair.backends.flower.launch import failure
from privfair.backends.flower.processes import Processes, environment
from privfair.storage import write_json

LOOK = 0.5  # seconds between two looks at the child
POLL = 0.01  # seconds between two looks for replies: everything is in one program


def simulate(
    config: Path, out: Path, nodes: Sequence[Node], *, logs: Path, watch: Callable[[], None] = lambda: None
) -> None:
    """Return when the run has ended well; otherwise raise what the server said. `watch`: as for real processes."""
    about = [{"client": n.client, "config": str(n.config), "folder": str(n.folder)} for n in nodes]
    write_json(out / "nodes.json", {"nodes": about})
    command = [sys.executable, "-P", "-m", __name__, str(config), str(out)]
    with Processes(logs) as processes:
        child = processes.start("simulation", command, environment(logs))
        while child.poll() is None:
            time.sleep(LOOK)
            watch()
    if child.returncode or not (out / "metrics.json").is_file():
        raise failure(out, f"code {child.returncode}", logs)


def main(config: Path, out: Path) -> None:
    """The child: one run of the app, all of it in this program and Ray's."""
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from privfair.backends.flower.client_app import ACTION, answer
    from privfair.backends.flower.server_app import serve

    nodes: list[Mapping[str, str]] = json.loads((out / "nodes.json").read_text())["nodes"]
    server, client = ServerApp(), ClientApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        serve(grid, config, out, poll=POLL)

    @client.query(ACTION)
    def by_number(message: Message, context: Context) -> Message:
        """Flower numbers its simulated nodes, and the number is the holder's."""
        context.node_config.update(nodes[int(context.node_config["partition-id"])])
        return answer(message, context)

    resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, len(nodes), backend_config=resources)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
