from __future__ import annotations

import json
import stat
import sys

import pytest
from typer.testing import CliRunner

from accountant.errors import InputError
from privfair.cli.keys import app

runner = CliRunner()


def run(*arguments):
    return runner.invoke(app, [str(a) for a in arguments])


def test_new_writes_keys_and_says_what_goes_to_whom(tmp_path):
    result = run("new", tmp_path / "keys")
    assert result.exit_code == 0
    assert "client.key: SECRET. To every client and to nobody else" in result.stdout
    assert "server.key: public. To the server" in result.stdout
    assert (
        "with two clients each knows the other's delta; then the noise of that client alone is what remains"
        in result.stdout
    )
    assert stat.S_IMODE((tmp_path / "keys" / "client.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_json_is_one_object(tmp_path, scheme):
    made = json.loads(run("new", tmp_path / "keys", "--scheme", scheme, "--json").stdout)
    assert made["scheme"] == scheme
    assert set(made) == {"scheme", "key_id", "client", "server", "warning"}
    shown = json.loads(run("show", tmp_path / "keys", "--json").stdout)["keys"]
    assert [(key["role"], key["scheme"], key["key_id"]) for key in shown] == [
        ("client", scheme, made["key_id"]),
        ("server", scheme, made["key_id"]),
    ]


def test_show_takes_a_file_or_a_directory(tmp_path):
    run("new", tmp_path)
    for path, roles in ((tmp_path, 2), (tmp_path / "server.key", 1), (tmp_path / "client.key", 1)):
        result = run("show", path)
        assert result.exit_code == 0
        assert result.stdout.count("scheme bfv") == roles
    (tmp_path / "client.key").chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        runner.invoke(app, ["show", str(tmp_path / "client.key")], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["new", "{}", "--scheme", "rsa"], "scheme must be one of bfv, ckks, masked; found 'rsa'"),
        (["new", "{}/taken"], "directory must be one, or possible to make"),
        (["show", "{}"], "must hold client.key or server.key"),
        (["show", "{}/nothing"], "must be a file that can be read"),
        (["show", "{}/taken"], "must be a key file of privfair"),
    ],
)
def test_bad_input_is_an_input_error(tmp_path, arguments, text):
    (tmp_path / "taken").write_text("hello")
    with pytest.raises(InputError, match=text):
        runner.invoke(app, [a.replace("{}", str(tmp_path)) for a in arguments], catch_exceptions=False)


def test_keys_of_two_pairs_in_one_place_are_noticed(tmp_path):
    run("new", tmp_path / "a")
    run("new", tmp_path / "b")
    (tmp_path / "b" / "server.key").replace(tmp_path / "a" / "server.key")
    with pytest.raises(InputError, match="key files must belong together"):
        runner.invoke(app, ["show", str(tmp_path / "a")], catch_exceptions=False)


def test_help_needs_no_tenseal():
    before = "tenseal" in sys.modules
    assert run("--help").exit_code == 0
    assert ("tenseal" in sys.modules) == before


def test_a_data_holder_makes_its_own_signing_key(tmp_path):
    made = json.loads(run("identity", tmp_path / "keys", "--json").stdout)
    path = tmp_path / "keys" / "identity.key"
    assert made["identity"] == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert bytes.fromhex(made["public"]) not in path.read_bytes()
    (shown,) = json.loads(run("show", path, "--json").stdout)["keys"]
    assert (shown["role"], shown["key_id"]) == ("identity", made["public"])
    again = run("identity", tmp_path / "keys")
    assert isinstance(again.exception, InputError)
    assert "must not exist yet" in str(again.exception)
    path.chmod(0o644)
    assert "must be readable by its owner only" in str(run("show", path).exception)


def test_keys_of_all_holders_in_one_place(tmp_path):
    result = run("new", tmp_path / "keys", "--scheme", "masked", "--holders", "north,south,west")
    assert result.exit_code == 0
    assert "[aggregation.identities]" in result.stdout
    for name in ("north", "south", "west"):
        shown = json.loads(run("show", tmp_path / "keys" / name, "--json").stdout)["keys"]
        assert {key["role"] for key in shown} == {"client", "identity"}
        identity = next(key["key_id"] for key in shown if key["role"] == "identity")
        assert f'"{name}" = "{identity}"' in result.stdout
    for wrong in ("a,a", "a,,b", "../a", ".a,b"):
        refused = run("new", tmp_path / wrong.replace("/", "_"), "--holders", wrong).exception
        assert "must be different names of folders" in str(refused)
