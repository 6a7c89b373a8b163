"""The ServerApp: runs our rounds over Flower's grid.

Run configuration: config (the server's TOML file), out (the server's folder; one with a checkpoint is continued).
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.deployment.flower.link import POLL, GridLink
from privfair.deployment.server import server_run, write_results
from privfair.federated.exchange import Unfinished
from privfair.util import write_json

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run; an error in our words is also written to error.json in the server's folder."""
    logging.getLogger("flwr").addFilter(_in_plain_words)
    serve(grid, Path(str(context.run_config["config"])), Path(str(context.run_config["out"])))


def _in_plain_words(record: logging.LogRecord) -> bool:
    """Log an error in our words as one line, without a traceback: it says itself what is wrong and what to do."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, InputError | Refused):
        record.msg, record.args, record.exc_info = f"privfair: {error}", (), None
    return True


def serve(grid: Grid, config: Path, out: Path, *, poll: float = POLL) -> None:
    """The run of this configuration, in this folder; `poll`: seconds between two looks for replies."""
    try:
        run = server_run(Config.read(config), out, GridLink(grid, poll=poll))
        write_results(run, run.go())
    except InputError as error:
        about = {"name": error.name, "rule": error.rule, "found": str(error.found), "remedy": error.remedy}
        write_json(out / "error.json", {"kind": "input", **about, "message": str(error)})
        raise
    except Refused as error:
        kind = "unfinished" if isinstance(error, Unfinished) else "refused"
        write_json(out / "error.json", {"kind": kind, "message": str(error)})
        raise
