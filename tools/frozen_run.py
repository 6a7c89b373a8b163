"""The frozen runs, and what is frozen of each, as plain values.

`tools.frozen` starts this file as a script, with the privfair of any commit on PYTHONPATH, and `tests/frozen` imports
it. It uses nothing of privfair but its public face: `privfair.train`, the files of a run folder, and the ledger's
tables through plain SQL. So it outlives every module inside the package, and works with commits that do not have it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "tests" / "frozen" / "configs"
PEOPLE = ROOT / "tests" / "frozen" / "people.csv"

# Runs that are interrupted in this round, before its checkpoint, and continued; each has the configuration of another.
RESUMED = {"bfv_resumed": ("bfv", 2), "scaffold_resumed": ("scaffold", 2)}
SLOW = ("flower", "flower_simulation")  # programs of their own
APPROXIMATE = ("ckks",)  # opened sums carry random flooding noise

# Values of these keys of privacy.json are words that programs read; other texts are sentences, which may change.
WORDS = ("adjacency", "method", "unbounded")
LEFT_OUT = ("url", "id", "run", "head")


class Interrupted(Exception):
    """Raised in the middle of a run."""


def names() -> list[str]:
    """All frozen runs."""
    return sorted([path.stem for path in CONFIGS.glob("*.toml")] + list(RESUMED))


def run(name: str, folder: Path) -> dict[str, Any]:
    """Carry out one run in an empty folder; what comes back is all that is frozen of it."""
    import privfair

    config, stop = RESUMED.get(name, (name, None))
    out, ledger = folder / "run", folder / "ledger.sqlite"
    sections: dict[str, dict[str, Any]] = {"run": {"ledger": f"sqlite:///{ledger}"}}
    if config == "several_attributes":
        sections["data"] = {"path": str(PEOPLE)}
    if stop is None:
        result = privfair.train(CONFIGS / f"{config}.toml", out=out, **sections)
    else:

        def interrupt(row: dict[str, Any]) -> None:
            if row["round"] == stop:
                raise Interrupted

        try:
            privfair.train(CONFIGS / f"{config}.toml", out=out, report=interrupt, **sections)
        except Interrupted:
            result = privfair.train(resume=out)
        else:
            raise RuntimeError(f"{name} was not interrupted")
    return frozen(out, ledger, list(result.rows))


def frozen(out: Path, ledger: Path, history: list[dict[str, Any]]) -> dict[str, Any]:
    """What is frozen of a finished run: its model, history, statement, figures and rows of the ledger."""
    from safetensors.numpy import load_file

    metrics = json.loads((out / "metrics.json").read_text())
    model = load_file(out / "model.safetensors")
    flower = metrics["engine"].startswith("flower")
    found = {
        "model": {key: {"shape": list(array.shape), "values": array.ravel().tolist()} for key, array in model.items()},
        "history": history,
        "privacy": numbers(json.loads((out / "privacy.json").read_text())),
        "figures": {key: metrics[key] for key in ("accuracy", "rmse", "unfairness", "groups")},
        "released": metrics.get("released"),
        "absent": metrics["absent"],
        "unseen_groups": metrics["unseen_groups"],
        "ledger": ledger_rows(ledger, in_order=not flower) if ledger.exists() else None,
    }
    if not flower:  # there, bytes are those of the frames, too
        found["bytes"] = metrics["bytes"]
    return found


def numbers(value: Any, key: str = "") -> Any:
    """A statement without its sentences, and without what is new in every run."""
    if isinstance(value, dict):
        return {name: numbers(inner, name) for name, inner in value.items() if name not in LEFT_OUT}
    if isinstance(value, list):
        texts = bool(value) and all(isinstance(inner, str) for inner in value) and key not in WORDS
        return "sentences" if texts else [numbers(inner, key) for inner in value]
    return "text" if isinstance(value, str) and key not in WORDS else value


def ledger_rows(path: Path, *, in_order: bool) -> dict[str, Any]:
    """All rows in their order; every distinct event once, as a parsed object, and rows refer to it by its place.

    Data holders that answer at the same time write in any order: of them, rows are sorted.
    """
    query = (
        "SELECT kind, round, count, dataset, client, group_name, channel, run, body "
        "FROM entries JOIN sources USING (source) ORDER BY sequence"
    )
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        found = connection.execute(query).fetchall()
    finally:
        connection.close()
    if not in_order:
        found.sort(key=lambda row: (row[0], -1 if row[1] is None else row[1], *row[3:]))
    rows, events = [], []
    for kind, number, count, dataset, client, group, channel, run_name, body in found:
        event = json.loads(body) if kind == "spend" else None  # others name who wrote them, and the ledger
        if event is not None and event not in events:
            events.append(event)
        # a run's name begins with its date, time and a random part, and ends with how it divides the records
        division = run_name.split("-", 3)[3] if run_name else ""
        place = None if event is None else events.index(event)
        rows.append([kind, number, count, dataset, client, group, channel, division, place])
    return {"count": len(rows), "rows": rows, "events": events}


def main(tree: str, output: str, *chosen: str) -> None:
    """Write what is frozen of the chosen runs into a JSON file, by name, as made by the packages in `tree`.

    A run that fails has the key "error" instead.
    """
    import accountant
    import privfair

    for package in (accountant, privfair):
        found = Path(str(package.__file__)).resolve()
        if not found.is_relative_to(Path(tree).resolve()):
            raise SystemExit(f"{package.__name__} came from {found}, and should come from {tree}")
    records: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="privfair-frozen-") as folder:
        os.environ["PRIVFAIR_STATE"] = f"{folder}/state"
        os.chdir(folder)
        for name in chosen:
            started = time.perf_counter()
            place = Path(folder) / name
            place.mkdir()
            try:
                records[name] = run(name, place)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other runs go on
                records[name] = {"error": f"{type(error).__name__}: {error}"}
            print(f"  {name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
        os.chdir(ROOT)
    Path(output).write_text(json.dumps(records))


if __name__ == "__main__":
    main(*sys.argv[1:])
