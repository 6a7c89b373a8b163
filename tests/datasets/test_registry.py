from __future__ import annotations

import subprocess
import sys

import pytest

from accountant.errors import InputError
from privfair.datasets import describe, load
from privfair.datasets.downloads import cache_folder, locate


def test_every_dataset_says_what_it_is() -> None:
    infos = {info.name: info for info in describe()}
    assert list(infos) == ["synthetic", "compas", "communities", "adult", "drug", "credit", "csv"]
    for info in infos.values():
        assert info.description
        assert info.source
        assert info.licence
        assert len(info.paragraphs()) >= 2
        assert [option for option in info.options if f"`{option}`" not in info.preprocessing] == []
        for file in info.files:
            assert len(file.sha256) == 64
            assert all(url.startswith("https://") and url.endswith(file.name) for url in file.urls)
    assert infos["synthetic"].options["clients"] == 10
    assert infos["csv"].options["path"] == "(required)"


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"dataset must be in the registry; found 'compass'\. Did you mean 'compas'\?"):
        load("compass")
    with pytest.raises(InputError, match=r"There are: synthetic, compas"):
        load("xyzzy")


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"option client must be an option of synthetic.*Did you mean 'clients'"):
        load("synthetic", client=3)


def test_a_missing_option_is_named() -> None:
    with pytest.raises(InputError, match=r"option sensitive must be given for csv.*csv needs: path, label, sensitive"):
        load("csv", path="x.csv", label="y")


@pytest.mark.parametrize("name", [3, None, ["csv"], {"name": "csv"}])
def test_a_name_is_text(name) -> None:
    with pytest.raises(InputError, match="dataset must be in the registry"):
        load(name)


def test_options_called_like_arguments_are_explained() -> None:
    """They come from a file of settings, where anything may stand."""
    assert load("synthetic", **{"seed": 2, "test_fraction": 0.5}).name == "synthetic"
    with pytest.raises(InputError, match="option name must be an option of synthetic"):
        load("synthetic", **{"name": "x"})
    with pytest.raises(InputError, match="seed must be a whole number"):
        load("csv", **{"seed": "x"})
    with pytest.raises(InputError, match="test_fraction must be a number"):
        load("csv", **{"test_fraction": "x"})


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan"), "a", "0.25", None, [0.5], True, 1j])
def test_the_test_fraction_is_checked(share) -> None:
    with pytest.raises(InputError, match="test_fraction must be"):
        load("synthetic", test_fraction=share)


@pytest.mark.parametrize("seed", [-1, 1.5, "a", "3", None, [1], True])
def test_the_seed_is_checked(seed) -> None:
    with pytest.raises(InputError, match="seed must be a whole number"):
        load("synthetic", seed=seed)


def test_the_data_folder_comes_before_the_cache(empty_cache, tmp_path, monkeypatch) -> None:
    assert cache_folder() == empty_cache
    assert locate("adult.data") is None
    empty_cache.mkdir()
    (empty_cache / "adult.data").touch()
    assert locate("adult.data") == empty_cache / "adult.data"
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("PRIVFAIR_DATA", str(folder))
    assert locate("adult.data") == empty_cache / "adult.data"
    (folder / "adult.data").touch()
    assert locate("adult.data") == folder / "adult.data"


def test_the_cache_is_in_the_home_without_xdg(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "privfair"


def test_datasets_need_neither_torch_nor_pandas() -> None:
    code = "import sys, privfair.datasets as d; d.load('synthetic'); print({'torch', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
