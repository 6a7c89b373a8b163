"""`privfair keys`: key pairs for encrypted aggregation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from accountant.errors import InputError
from privfair.cli.console import Console
from privfair.cli.ledger import JsonOption

app = typer.Typer(no_args_is_help=True, help="Key pairs for encrypted aggregation: new, show.")


@app.command()
def new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the key files.")],
    scheme: Annotated[
        str,
        typer.Option(help="bfv: exact sums. ckks: approximate sums, larger messages. masked: masks, small messages."),
    ] = "bfv",
    as_json: JsonOption = False,
) -> None:
    """Make a key pair: client.key for every client, server.key for the server. Nothing is overwritten.

    Example: privfair keys new keys/
    """
    from privfair.secure_aggregation.keys import FILE_NAMES, key_warning, new_keys

    keys = new_keys(scheme)
    keys.save(directory)
    files = {role: str(directory / name) for role, name in FILE_NAMES.items()}
    if as_json:
        about = {"scheme": scheme, "key_id": keys.client.key_id, **files, "warning": key_warning(scheme)}
        print(json.dumps(about))
        return
    console = Console(soft_wrap=True)
    console.print(f"{scheme} keys {keys.client.key_id}", markup=False)
    console.print(f"  {files['client']}: SECRET. To every client and to nobody else; keep its mode 0600.", markup=False)
    console.print(f"  {files['server']}: public. To the server, which can add with it and open nothing.", markup=False)
    console.print(f"[bold yellow]warning:[/] {key_warning(scheme)}")


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A key file, or a directory with key files.")],
    as_json: JsonOption = False,
) -> None:
    """Show what the key files are, after checking that they are whole, usable and readable by the right people."""
    found = [_about(file, role) for role, file in _files(path)]
    if len({about["key_id"] for about in found}) > 1:
        raise InputError("key files", "must belong together", [about["key_id"] for about in found])
    if as_json:
        print(json.dumps({"keys": found}))
        return
    for about in found:
        line = f"{about['path']}: {about['role']} key, scheme {about['scheme']}, key id {about['key_id']}"
        Console().print(line, markup=False, soft_wrap=True)


def _files(path: Path) -> list[tuple[str, Path]]:
    """The key files at a path, each with the role it is in: by name in a directory, by content for a file."""
    from privfair.secure_aggregation.keys import FILE_NAMES, role_of

    if not path.is_dir():
        return [(role_of(path), path)]
    found = [(role, path / name) for role, name in FILE_NAMES.items() if (path / name).exists()]
    if not found:
        raise InputError("directory", f"must hold {' or '.join(FILE_NAMES.values())}", str(path))
    return found


def _about(path: Path, role: str) -> dict[str, Any]:
    from privfair.secure_aggregation.keys import load_client, load_server

    keys = load_client(path) if role == "client" else load_server(path)
    return {"path": str(path), "role": role, "scheme": keys.scheme, "key_id": keys.key_id}
