"""`privfair data`: the datasets, where they come from, and whether they are what they should be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.progress import Progress
from rich.text import Text

from accountant.errors import InputError
from privfair.cli.console import ANSWER_IS_NO, Console, escape, plain_table
from privfair.cli.ledger import JsonOption

if TYPE_CHECKING:
    from privfair.datasets.downloads import DatasetInfo
    from privfair.datasets.records import ClientData, Federation, Records

CLIENTS_SHOWN = 50

app = typer.Typer(no_args_is_help=True, help="The registry of datasets: list, fetch, check.")
Name = Annotated[str, typer.Argument(help="A dataset of the registry; `privfair data list` shows them.")]


@app.command("list")
def list_datasets(as_json: JsonOption = False) -> None:
    """Show every dataset: what it is, its source, its options, its preprocessing, and whether it is on this machine."""
    from privfair.datasets import describe

    datasets = describe()
    if as_json:
        print(json.dumps({"datasets": [_info_json(info) for info in datasets]}))
        return
    console = Console()
    for info in datasets:
        console.print(f"[bold]{info.name}[/]", "[green]available[/]" if info.available else "[yellow]not here[/]")
        lines = [info.description, f"source: {info.source}", f"licence: {info.licence}"]
        lines += [f"file: {file.name} ({file.found or 'not here'})" for file in info.files]
        lines += ["options: " + ", ".join(f"{option} = {_shown(value)}" for option, value in info.options.items())]
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
        for paragraph in info.paragraphs():
            console.print(Padding(Text(paragraph, style="dim"), (0, 0, 0, 4)))
        console.print()


@app.command()
def fetch(name: Name, as_json: JsonOption = False) -> None:
    """Download a dataset from its public source into the user's cache and verify its SHA-256."""
    from privfair.datasets.downloads import fetch as fetch_files
    from privfair.datasets.registry import find

    dataset = find(name)
    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as progress:
        tasks = {file.name: progress.add_task(file.name, total=file.size) for file in dataset.files}
        fetched = fetch_files(
            dataset, progress=lambda file, done, total: progress.update(tasks[file], completed=done, total=total)
        )
    if as_json:
        files = [{"name": f.name, "path": str(f.path), "downloaded": f.downloaded} for f in fetched]
        print(json.dumps({"dataset": name, "files": files}))
        return
    for file in fetched:
        how = "fetched, SHA-256 verified" if file.downloaded else "here already"
        Console().print(f"{file.name}: {how}: {file.path}", markup=False, soft_wrap=True)


@app.command()
def check(
    name: Name,
    simulation: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the dataset, key=value; for csv: path, label, …")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split, and of synthetic data.", min=0)] = 0,
    test_fraction: Annotated[float, typer.Option(help="Expected share of test records.")] = 0.25,
    as_json: JsonOption = False,
) -> None:
    """Load a dataset and show its clients, groups, labels and notes; exit code 1 if a file is not the published one.

    Example: privfair data check compas --set attribute_as_feature=false
    """
    from privfair.datasets import load
    from privfair.datasets.downloads import digest
    from privfair.datasets.registry import find

    federation = load(name, seed=seed, test_fraction=test_fraction, **_settings(simulation or []))
    files = {
        file.name: file.found is not None and digest(file.found) == file.sha256 for file in find(name).info().files
    }
    if as_json:
        print(json.dumps({**_federation_json(federation), "published": files}))
    else:
        _print_federation(Console(), federation, files)
    if not all(files.values()):
        raise typer.Exit(ANSWER_IS_NO)


def _settings(pairs: list[str]) -> dict[str, Any]:
    """The options in `key=value` pairs; a value that is not TOML is text."""
    from privfair.datasets.downloads import COMMON
    from privfair.util import toml_value

    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InputError("--set", "must be key=value", pair)
        if key.strip() in COMMON:
            own = "--" + key.strip().replace("_", "-")
            raise InputError("--set", f"must not hold {key.strip()}", pair, f"Use {own}.")
        settings[key.strip()] = toml_value(value)
    return settings


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _counts(federation: Federation, records: Records) -> dict[str, dict[str, int]]:
    """For each sensitive attribute, how many records have each value."""
    return {
        attribute.name: {value: int((records.groups[:, j] == i).sum()) for i, value in enumerate(attribute.values)}
        for j, attribute in enumerate(federation.schema.sensitive)
    }


def _mean_label(records: Records) -> float | None:
    return float(records.labels.mean(dtype=float)) if len(records) else None


def _everything(client: ClientData) -> Records:
    from privfair.datasets import Records

    return Records.concatenate([client.train, client.test])


def _federation_json(federation: Federation) -> dict[str, Any]:
    """What the check found, as plain values."""
    schema = federation.schema
    clients = [(client, _everything(client)) for client in federation.clients]
    return {
        "dataset": federation.name,
        "records": sum(len(records) for _, records in clients),
        "features": list(schema.features),
        "task": schema.task,
        "label": schema.label,
        "label_range": list(schema.label_range),
        "sensitive": {attribute.name: list(attribute.values) for attribute in schema.sensitive},
        "conditions": list(schema.conditions),
        "inferred": schema.inferred,
        "clients": [
            {
                "name": client.name,
                "train": len(client.train),
                "test": len(client.test),
                "groups": _counts(federation, records),
                "mean_label": _mean_label(records),
            }
            for client, records in clients
        ],
        "notes": list(federation.notes),
    }


def _print_federation(console: Console, federation: Federation, files: dict[str, bool]) -> None:
    """What the check found, for a reader."""
    schema = federation.schema
    total = sum(len(client.train) + len(client.test) for client in federation.clients)
    counts = f"{total} records, {len(federation.clients)} clients, {len(schema.features)} features"
    console.print(f"[bold]{escape(federation.name)}: {counts}[/]", highlight=False)
    table = plain_table()
    table.add_column("client", overflow="fold")
    for heading in ("train", "test", *(attribute.name for attribute in schema.sensitive), "mean label"):
        table.add_column(escape(heading), justify="right")
    for client in federation.clients[:CLIENTS_SHOWN]:
        records = _everything(client)
        groups = [" / ".join(map(str, counts.values())) for counts in _counts(federation, records).values()]
        mean = _mean_label(records)
        label = "–" if mean is None else f"{mean:.3f}"
        table.add_row(escape(client.name), str(len(client.train)), str(len(client.test)), *groups, label)
    console.print(table)
    if len(federation.clients) > CLIENTS_SHOWN:
        console.print(f"… and {len(federation.clients) - CLIENTS_SHOWN} more clients")
    for attribute in schema.sensitive:
        console.print(f"groups by {attribute.name}: {' / '.join(attribute.values)}", markup=False)
    for note in federation.notes:
        console.print(f"note: {note}", markup=False)
    for name, published in files.items():
        console.print(f"{name}: " + ("the published file" if published else "NOT the published file"), markup=False)


def _info_json(info: DatasetInfo) -> dict[str, Any]:
    """A dataset of the registry as plain values."""
    return {
        "name": info.name,
        "description": info.description,
        "source": info.source,
        "licence": info.licence,
        "available": info.available,
        "files": [
            {"name": f.name, "sha256": f.sha256, "urls": list(f.urls), "found": str(f.found) if f.found else None}
            for f in info.files
        ],
        "options": dict(info.options),
        "preprocessing": info.preprocessing,
    }
