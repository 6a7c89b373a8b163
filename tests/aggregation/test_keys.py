from __future__ import annotations

import json
import os
import stat
from dataclasses import replace

import numpy as np
import pytest
import tenseal

from accountant.errors import InputError
from privfair.secure_aggregation import KeyPair, load_client, load_server, new_keys, plain_keys
from privfair.secure_aggregation import tenseal as seal
from privfair.secure_aggregation.keys import _client, _server
from privfair.secure_aggregation.tenseal import BFV as PARAMETERS
from privfair.secure_aggregation.tenseal import BfvServer, Parameters


@pytest.fixture(params=["bfv", "ckks"])
def keys(request, bfv_keys, ckks_keys) -> KeyPair:
    return {"bfv": bfv_keys, "ckks": ckks_keys}[request.param]


def test_saved_and_loaded_keys_work_together(keys, tmp_path):
    directory = keys.save(tmp_path / "new" / "keys")
    client, server = load_client(directory), load_server(directory / "server.key")
    assert client.key_id == server.key_id == keys.client.key_id
    total = server.add(client.encrypt(np.arange(5)), keys.client.encrypt(np.arange(5)))
    # the same in every client: also the flooding noise of CKKS
    np.testing.assert_array_equal(client.decrypt(total), keys.client.decrypt(total))
    about = json.loads((directory / "about.json").read_text())
    assert (about["scheme"], about["key_id"]) == (keys.client.scheme, keys.client.key_id)
    assert "one client" in about["warning"]


def test_the_secret_file_is_0600_whatever_the_umask(bfv_keys, tmp_path):
    before = os.umask(0)
    try:
        bfv_keys.save(tmp_path / "keys")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys" / "client.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_the_secret_is_in_the_client_file_only(keys, tmp_path):
    keys.save(tmp_path)
    files = keys._files
    assert tenseal.context_from(files[0].parts["context"]).has_secret_key()
    assert set(files[1].parts) == {"public"}
    context = tenseal.context_from(files[1].parts["public"])
    assert not any((context.has_secret_key(), context.has_galois_keys(), context.has_relin_keys()))
    if "flooding" in files[0].parts:
        assert files[0].parts["flooding"] not in (tmp_path / "server.key").read_bytes()


def test_nothing_is_overwritten(bfv_keys, tmp_path):
    bfv_keys.save(tmp_path)
    kept = (tmp_path / "client.key").read_bytes()
    with pytest.raises(InputError, match=r"key file must not exist yet; found .*client\.key.*another directory"):
        new_keys("bfv").save(tmp_path)
    assert (tmp_path / "client.key").read_bytes() == kept
    (tmp_path / "client.key").unlink()
    with pytest.raises(InputError, match=r"must not exist yet; found .*server\.key"):
        bfv_keys.save(tmp_path)
    assert not (tmp_path / "client.key").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(bfv_keys, tmp_path, mode):
    bfv_keys.save(tmp_path)
    path = tmp_path / "client.key"
    path.chmod(mode)
    with pytest.raises(InputError, match=rf"owner only \(mode 0600\); found '{mode:04o}'.*chmod 600 .*client\.key"):
        load_client(tmp_path)
    path.chmod(0o400)
    load_client(tmp_path)


def test_the_wrong_role_is_named(bfv_keys, tmp_path):
    bfv_keys.save(tmp_path)
    with pytest.raises(InputError, match=r"must be a client key; found 'a server key'\. Use client\.key"):
        load_client(tmp_path / "server.key")
    with pytest.raises(InputError, match=r"must be a server key; found 'a client key'.*must never hold client\.key"):
        load_server(tmp_path / "client.key")


def test_damaged_missing_and_foreign_files_are_named(bfv_keys, tmp_path):
    bfv_keys.save(tmp_path)
    path = tmp_path / "server.key"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:5000], whole[:900] + b"x" + whole[901:], whole + b"x", whole[:20]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"server\.key must be whole and unchanged; found 'a wrong checksum'"):
            load_server(tmp_path)
    path.write_bytes(b"-----BEGIN RSA PRIVATE KEY-----")
    with pytest.raises(InputError, match="must be a key file of privfair; found 'other content'"):
        load_server(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match="must be a file that can be read; found 'No such file"):
        load_server(tmp_path)


def test_content_that_does_not_belong_is_named(bfv_keys, ckks_keys, tmp_path):
    client, server = bfv_keys._files
    with pytest.raises(InputError, match="key must match its fingerprint"):
        _server(replace(server, key_id="0" * 32))
    with pytest.raises(InputError, match="key's scheme must be one of bfv, ckks, masked; found 'rsa'"):
        _server(replace(server, scheme="rsa"))
    with pytest.raises(InputError, match="must have the parameters of ckks"):
        _server(replace(server, scheme="ckks"))
    with pytest.raises(InputError, match="must hold the public key and the secret key"):
        _client(replace(client, parts=client.parts | {"context": server.parts["public"]}))
    with pytest.raises(InputError, match="must hold the public key and no secret key"):
        BfvServer(client.parts["context"], client.key_id)
    with pytest.raises(InputError, match="must hold a context of TenSEAL"):
        _client(replace(client, parts=client.parts | {"context": b"nonsense"}))
    with pytest.raises(InputError, match="server key must match the client key bfv"):
        KeyPair(bfv_keys.client, ckks_keys.server)


def test_a_context_with_more_keys_than_the_server_may_have_is_refused():
    context = seal.new_context(PARAMETERS)
    with_relin = context.serialize(save_secret_key=False, save_relin_keys=True)
    assert tenseal.context_from(with_relin).has_relin_keys()
    with pytest.raises(InputError, match="must hold no Galois and no relinearisation keys"):
        seal.load_context(with_relin, PARAMETERS, secret=False)


def test_schemes_without_keys():
    with pytest.raises(
        InputError, match=r"scheme must be one of bfv, ckks, masked; found 'plain'\. plain needs no keys"
    ):
        new_keys("plain")
    with pytest.raises(InputError, match="keys must be of a scheme with keys to be saved"):
        plain_keys(quantise=True).save("anywhere")


@pytest.mark.parametrize(("degree", "bits"), [(4096, (55, 55)), (2048, (27, 27)), (8192, (60, 60, 60, 60))])
def test_less_than_128_bits_is_refused(degree, bits):
    with pytest.raises(InputError, match=r"must give 128-bit security \(4096: at most 109 bits"):
        Parameters("bfv", degree, bits, 1073692673)
