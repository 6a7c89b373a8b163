from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from accountant.errors import InputError
from privfair.datasets.downloads import Dataset, FetchError, SourceFile, fetch
from privfair.datasets.registry import find

CONTENT = b"published\n" * 20_000


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments) -> None:
        """Nothing on stderr."""


@pytest.fixture
def served(empty_cache, tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder that a server on this machine offers as the mirror."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("PRIVFAIR_DATA_URL", f"http://127.0.0.1:{server.server_port}/")
        yield folder
        server.shutdown()
        thread.join()


def dataset(*names: str, size: int = len(CONTENT)) -> Dataset:
    files = tuple(
        SourceFile(name, sha256(CONTENT).hexdigest(), size, (f"https://example.invalid/{name}",)) for name in names
    )
    return Dataset("toy", "", "", "", find("synthetic").load, files)


def test_a_file_is_fetched_once(served, empty_cache) -> None:
    (served / "a.data").write_bytes(CONTENT)
    seen = []
    first = fetch(dataset("a.data"), progress=lambda name, done, total: seen.append((name, done, total)))
    assert [(f.path, f.downloaded) for f in first] == [(empty_cache / "a.data", True)]
    assert (empty_cache / "a.data").read_bytes() == CONTENT
    assert seen[-1] == ("a.data", len(CONTENT), len(CONTENT))
    (served / "a.data").unlink()
    assert [f.downloaded for f in fetch(dataset("a.data"))] == [False]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (CONTENT[:-1] + b"x", "SHA256 hash .* does not match"),
        (CONTENT[:100], "SHA256 hash .* does not match"),
        (CONTENT + b"x", "more bytes"),
        (None, "404 Client Error"),
    ],
)
def test_anything_but_the_published_file_leaves_nothing_behind(served, empty_cache, content, reason) -> None:
    if content is not None:
        (served / "a.data").write_bytes(content)
    with pytest.raises(FetchError, match=rf"a\.data must be had from its public source.*{reason}.*set PRIVFAIR_DATA"):
        fetch(dataset("a.data"))
    assert list(empty_cache.iterdir()) == []


def test_a_broken_copy_in_the_cache_is_replaced(served, empty_cache) -> None:
    (served / "a.data").write_bytes(CONTENT)
    empty_cache.mkdir()
    (empty_cache / "a.data").write_bytes(b"half")
    assert fetch(dataset("a.data"))[0].downloaded
    assert (empty_cache / "a.data").read_bytes() == CONTENT


def test_a_broken_copy_in_the_users_own_folder_is_not_touched(served, tmp_path, monkeypatch) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "a.data").write_bytes(b"half")
    monkeypatch.setenv("PRIVFAIR_DATA", str(own))
    with pytest.raises(FetchError, match=r"must be the published one.*Remove it, or point PRIVFAIR_DATA elsewhere"):
        fetch(dataset("a.data"))
    assert (own / "a.data").read_bytes() == b"half"


def test_offline_is_explained(empty_cache, monkeypatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PRIVFAIR_DATA_URL", "http://127.0.0.1:9")  # the discard port: nobody answers
    with pytest.raises(FetchError, match=r"Connection refused.*Without a network, copy the file"):
        fetch(dataset("a.data"), timeout=5)


@pytest.mark.parametrize("mirror", ["file:///tmp", "http://example.org", "ftp://127.0.0.1", "nonsense"])
def test_unsafe_addresses_are_refused(empty_cache, monkeypatch, mirror) -> None:
    monkeypatch.setenv("PRIVFAIR_DATA_URL", mirror)
    with pytest.raises(InputError, match="PRIVFAIR_DATA_URL must be an https address"):
        fetch(dataset("a.data"))


def test_there_is_nothing_to_fetch_for_synthetic_data() -> None:
    with pytest.raises(InputError, match=r"dataset synthetic must have published files.*nothing to fetch"):
        fetch(find("synthetic"))
