"""Keys are made once, kept for ever, and read only from files that nobody else could touch."""

import os
import stat
import threading
from pathlib import Path

import pytest

from qinglong_edge.domain.errors import DamagedError, UnavailableError, UsageError
from qinglong_edge.executor.ambient import system_entropy
from qinglong_edge.receipts.keys import Key, ReceiptKeys
from tests.support.receipts import tree


@pytest.fixture
def keys(tmp_path: Path) -> ReceiptKeys:
    return ReceiptKeys(str(tmp_path), system_entropy)


def test_the_first_key_is_private_and_made_once(tmp_path: Path, keys: ReceiptKeys) -> None:
    first = keys.create()
    assert (first.version, len(first.secret), len(set(first.secret)) > 1) == (1, 32, True)
    assert tree(tmp_path) == {"keys/hmac-1": first.secret}
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "keys/hmac-1").stat().st_mode) == 0o600
    assert keys.create() == first
    assert ReceiptKeys(str(tmp_path), system_entropy).newest() == first


def test_old_keys_stay_and_the_newest_seals(tmp_path: Path, keys: ReceiptKeys) -> None:
    made = [keys.create(), *(keys.rotate() for _ in range(10))]
    assert [key.version for key in made] == list(range(1, 12))
    assert len({key.secret for key in made}) == len(made)
    assert keys.newest() == made[-1] == keys.create()
    assert [keys.find(key.version) for key in made] == [key.secret for key in made]
    assert len(tree(tmp_path)) == len(made)


def test_a_lost_old_key_is_not_made_anew_under_its_version(
    tmp_path: Path, keys: ReceiptKeys
) -> None:
    keys.create()
    second = keys.rotate()
    (tmp_path / "keys/hmac-1").unlink()
    assert keys.create() == second
    assert keys.find(1) is None


def test_of_makers_at_once_one_wins(tmp_path: Path) -> None:
    made: list[Key] = []
    ready = threading.Barrier(8)

    def create() -> None:
        ready.wait()
        made.append(ReceiptKeys(str(tmp_path), system_entropy).create())

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1
    assert tree(tmp_path) == {"keys/hmac-1": made[0].secret}


def test_a_key_that_never_was_is_none_and_nothing_is_made(
    tmp_path: Path, keys: ReceiptKeys
) -> None:
    assert keys.find(1) is None
    with pytest.raises(DamagedError) as caught:
        keys.newest()
    assert caught.value.code == "receipt_keys_missing"
    with pytest.raises(DamagedError):
        keys.rotate()
    assert os.listdir(tmp_path) == []
    keys.create()
    assert keys.find(2) is None


@pytest.mark.parametrize("version", [0, -1, 2**31, True])
def test_what_is_no_version_is_refused(keys: ReceiptKeys, version: int) -> None:
    with pytest.raises(UsageError):
        keys.find(version)


@pytest.mark.parametrize("fault", ["short", "long", "empty", "mode", "link", "linked", "directory"])
def test_a_damaged_key_is_no_key_and_is_not_made_again(
    tmp_path: Path, keys: ReceiptKeys, fault: str
) -> None:
    path, other = tmp_path / "keys/hmac-1", tmp_path / "keys/other"
    secret = keys.create().secret
    if fault in {"short", "long", "empty"}:
        os.truncate(path, {"short": 31, "long": 33, "empty": 0}[fault])
    elif fault == "mode":
        path.chmod(0o640)
    elif fault == "linked":
        os.link(path, other)
    else:
        path.rename(other)
        path.symlink_to(other) if fault == "link" else path.mkdir()
    for call in (keys.newest, keys.create, keys.rotate, lambda: keys.find(1)):
        with pytest.raises(DamagedError) as caught:
            call()
        assert (caught.value.code, caught.value.details) == (
            "receipt_key_damaged",
            {"key_version": 1},
        )
        assert secret.hex() not in str(caught.value)
    assert not (tmp_path / "keys/hmac-2").exists()


def test_strange_names_among_the_keys_are_no_keys(tmp_path: Path, keys: ReceiptKeys) -> None:
    first = keys.create()
    for name in ("hmac-0", "hmac-01", "hmac-2.bak", "hmac-", "hmac-9999999999", ".hmac-3.tmp"):
        (tmp_path / "keys" / name).write_bytes(b"x" * 32)
    assert keys.newest() == first


def test_a_loose_directory_of_keys_is_refused(tmp_path: Path, keys: ReceiptKeys) -> None:
    keys.create()
    (tmp_path / "keys").chmod(0o750)
    for call in (keys.newest, keys.create, lambda: keys.find(1)):
        with pytest.raises(DamagedError):
            call()


def test_keys_of_a_state_that_is_gone_are_unavailable(tmp_path: Path) -> None:
    keys = ReceiptKeys(str(tmp_path / "gone"), system_entropy)
    for call in (keys.newest, keys.create, lambda: keys.find(1)):
        with pytest.raises(UnavailableError):
            call()
