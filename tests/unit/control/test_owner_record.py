"""The record of a listening owner: believed only while its very process lives."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from qinglong_edge.control import owner_record
from qinglong_edge.control.owner_record import RECORD_BYTES_MAX, OwnerRecord
from qinglong_edge.domain.errors import UnavailableError, UsageError
from qinglong_edge.domain.tick import Reading
from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.storage.sqlite.owner import OwnerLock
from tests.support.clock import FakeClocks

CLOCKS = SystemClocks()


def mine(path: str = "control.sock") -> OwnerRecord:
    return owner_record.this_process(path, CLOCKS)


def put(state: Path, content: bytes | OwnerRecord) -> None:
    if isinstance(content, OwnerRecord):
        content = json.dumps(content._asdict()).encode() + b"\n"
    (state / "lock").write_bytes(content)


def read(state: Path) -> OwnerRecord | None:
    return owner_record.read(str(state), CLOCKS)


def test_a_written_record_is_read_by_others_until_it_is_cleared(tmp_path: Path) -> None:
    with OwnerLock.acquire(str(tmp_path), clocks=CLOCKS) as lock:
        assert read(tmp_path) is None
        owner_record.write(lock.descriptor, mine())
        found = read(tmp_path)
        assert found == mine()._replace(socket=str(tmp_path / "control.sock"))
        owner_record.write(lock.descriptor, mine("/run/x/" + "y" * 500))
        owner_record.write(lock.descriptor, mine("/run/叶.sock"))
        found = read(tmp_path)
        assert found is not None
        assert found.socket == "/run/叶.sock"
        assert (tmp_path / "lock").read_bytes().count(b"\n") == 1
        owner_record.clear(lock.descriptor)
        assert read(tmp_path) is None
        assert (tmp_path / "lock").read_bytes() == b""


def test_a_record_outlives_no_boot_and_no_process(tmp_path: Path) -> None:
    put(tmp_path, mine())
    assert read(tmp_path) is not None
    put(tmp_path, mine()._replace(boot_id="another-boot"))
    assert read(tmp_path) is None
    put(tmp_path, mine()._replace(start_ticks=mine().start_ticks + 1))
    assert read(tmp_path) is None
    child = subprocess.Popen(
        [sys.executable, "-Ic", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    ticks = owner_record._start_ticks(child.pid)
    assert ticks is not None
    put(tmp_path, mine()._replace(pid=child.pid, start_ticks=ticks))
    assert read(tmp_path) is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert read(tmp_path) is None  # dead, though its parent has not looked yet
    child.communicate()
    assert read(tmp_path) is None


class NoBootId(FakeClocks):
    def read(self) -> Reading:
        raise UnavailableError("boot_id_unreadable", "no boot id can be read")


def test_where_no_boot_id_can_be_read_the_start_decides(tmp_path: Path) -> None:
    put(tmp_path, mine()._replace(boot_id="drawn"))
    assert owner_record.read(str(tmp_path), NoBootId()) is not None
    put(tmp_path, mine()._replace(start_ticks=1))
    assert owner_record.read(str(tmp_path), NoBootId()) is None


GOOD = mine()._asdict()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{}\n",
        b"\x00" * 200,
        b"\xff\n",
        json.dumps(GOOD).encode(),
        json.dumps(GOOD).encode() + b"\n\n",
        json.dumps(GOOD).encode() + b"\n}",
        json.dumps(GOOD | {"more": 1}).encode() + b"\n",
        *(json.dumps(GOOD | {"pid": bad}).encode() + b"\n" for bad in (0, -1, 2**31, "1", None)),
        *(json.dumps(GOOD | {"boot_id": bad}).encode() + b"\n" for bad in ("", "a b", 1, "x" * 65)),
        *(json.dumps(GOOD | {"start_ticks": bad}).encode() + b"\n" for bad in (-1, "1", None)),
        *(json.dumps(GOOD | {"socket": bad}).encode() + b"\n" for bad in ("", None, 1, "a\0b")),
        json.dumps(GOOD | {"socket": "x" * RECORD_BYTES_MAX}).encode() + b"\n",
        b" " * 1_000_000 + json.dumps(GOOD).encode() + b"\n",
        b'{"pid":1,' + json.dumps(GOOD).encode()[1:] + b"\n",
    ],
)
def test_what_is_no_record_names_nobody(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, content)
    assert read(tmp_path) is None


def test_only_a_file_of_its_own_is_read(tmp_path: Path) -> None:
    assert read(tmp_path / "missing") is None
    assert read(tmp_path) is None
    (tmp_path / "other").write_text(json.dumps(GOOD) + "\n")
    (tmp_path / "lock").symlink_to(tmp_path / "other")
    assert read(tmp_path) is None
    (tmp_path / "lock").unlink()
    os.mkfifo(tmp_path / "lock")
    assert read(tmp_path) is None
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()
    assert read(tmp_path) is None
    (tmp_path / "lock").rmdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "lock"))
    assert read(tmp_path) is None


def test_a_storage_that_fails_is_said_to(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        owner_record.read(str(tmp_path / ("x" * 300)), CLOCKS)
    put(tmp_path, b"")
    descriptor = os.open(tmp_path / "lock", os.O_RDONLY)
    with pytest.raises(UnavailableError):
        owner_record.write(descriptor, mine())
    os.close(descriptor)


@pytest.mark.parametrize("path", ["x" * RECORD_BYTES_MAX, "/\udcff"])
def test_a_socket_that_no_record_can_hold_is_refused(tmp_path: Path, path: str) -> None:
    put(tmp_path, b"")
    descriptor = os.open(tmp_path / "lock", os.O_RDWR)
    with pytest.raises(UsageError) as caught:
        owner_record.write(descriptor, mine(path))
    os.close(descriptor)
    assert caught.value.code == "invalid_socket"
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_process_without_a_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise FileNotFoundError

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(UnavailableError) as caught:
            mine()
    assert caught.value.code == "proc_missing"
