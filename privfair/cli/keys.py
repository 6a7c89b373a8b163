"""`privfair keys`: key pairs for encrypted aggregation, and the keys that data holders sign with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from accountant.errors import InputError
from privfair.cli.console import Console
from privfair.cli.ledger import JsonOption

app = typer.Typer(no_args_is_help=True, help="Key pairs for encrypted aggregation: new, identity, show.")


@app.command()
def new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the key files.")],
    scheme: Annotated[
        str,
        typer.Option(help="bfv: exact sums. ckks: approximate sums, larger messages. masked: masks, small messages."),
    ] = "bfv",
    holders: Annotated[
        str | None,
        typer.Option(
            help="For masks. Names of data holders, with commas: each gets a folder with client.key and identity.key."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key pair: client.key for every client, server.key for the server. Nothing is overwritten.

    Example: privfair keys new keys/
    """
    from privfair.secure_aggregation.keys import FILE_NAMES, key_warning, new_identity, new_keys, write_new

    names = [] if holders is None else [name.strip() for name in holders.split(",")]
    if any("/" in n or n.startswith(".") or not n for n in names) or len(set(names)) != len(names):
        raise InputError("--holders", "must be different names of folders", holders)
    keys = new_keys(scheme)
    keys.save(directory)
    files = {role: str(directory / name) for role, name in FILE_NAMES.items()}
    public = {name: new_identity(directory / name) for name in names}
    for name in names:
        write_new(directory / name / FILE_NAMES["client"], (directory / FILE_NAMES["client"]).read_bytes(), 0o600)
    if as_json:
        about = {"scheme": scheme, "key_id": keys.client.key_id, **files, "warning": key_warning(scheme)}
        print(json.dumps(about | ({"identities": public} if names else {})))
        return
    console = Console(soft_wrap=True)
    console.print(f"{scheme} keys {keys.client.key_id}", markup=False)
    console.print(f"  {files['client']}: SECRET. To every client and to nobody else; keep its mode 0600.", markup=False)
    console.print(f"  {files['server']}: public. To the server, which can add with it and open nothing.", markup=False)
    console.print(f"[bold yellow]warning:[/] {key_warning(scheme)}")
    if names:
        console.print(f"A folder under {directory} for each data holder, SECRET: each gets its own, nobody else's.")
        _print_identities(public)


@app.command()
def identity(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data holder's folder of keys.")],
    name: Annotated[str, typer.Option(help="The data holder's name in run.clients, for the line that is printed.")] = (
        "NAME"
    ),
    as_json: JsonOption = False,
) -> None:
    """Make the key that ONE data holder signs with, for masks: identity.key, beside its client.key.

    The public half is printed, for everybody's configuration. Example: privfair keys identity keys/ --name north
    """
    from privfair.secure_aggregation.keys import IDENTITY, new_identity

    public = new_identity(directory)
    if as_json:
        print(json.dumps({"identity": str(directory / IDENTITY), "public": public}))
        return
    about = f"{directory / IDENTITY}: SECRET. It stays with this data holder; keep its mode 0600."
    Console(soft_wrap=True).print(about, markup=False)
    _print_identities({name: public})


def _print_identities(public: Mapping[str, str]) -> None:
    """The public keys as every party's configuration has them."""
    console = Console(soft_wrap=True)
    console.print("In everybody's configuration:\n\n[aggregation.identities]", markup=False)
    for name, key in public.items():
        console.print(f'{json.dumps(name, ensure_ascii=False)} = "{key}"', markup=False)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A key file, or a directory with key files.")],
    as_json: JsonOption = False,
) -> None:
    """Show what the key files are, after checking that they are whole, usable and readable by the right people."""
    found = [_about(file, role) for role, file in _files(path)]
    if len({about["key_id"] for about in found if about["role"] != "identity"}) > 1:
        raise InputError("key files", "must belong together", [about["key_id"] for about in found])
    if as_json:
        print(json.dumps({"keys": found}))
        return
    for about in found:
        line = f"{about['path']}: {about['role']} key, scheme {about['scheme']}, key id {about['key_id']}"
        Console().print(line, markup=False, soft_wrap=True)


def _files(path: Path) -> list[tuple[str, Path]]:
    """The key files at a path, each with the role it is in: by name in a directory, by content for a file."""
    from privfair.secure_aggregation.keys import FILE_NAMES, IDENTITY, role_of

    if not path.is_dir():
        return [(role_of(path), path)]
    names = {**FILE_NAMES, "identity": IDENTITY}
    found = [(role, path / name) for role, name in names.items() if (path / name).exists()]
    if not found:
        raise InputError("directory", f"must hold {' or '.join(FILE_NAMES.values())}", str(path))
    return found


def _about(path: Path, role: str) -> dict[str, Any]:
    from privfair.secure_aggregation.keys import load_client, load_identity, load_server

    if role == "identity":
        public = load_identity(path).public_key().public_bytes_raw().hex()
        return {"path": str(path), "role": role, "scheme": "ed25519", "key_id": public}
    keys = load_client(path) if role == "client" else load_server(path)
    return {"path": str(path), "role": role, "scheme": keys.scheme, "key_id": keys.key_id}
