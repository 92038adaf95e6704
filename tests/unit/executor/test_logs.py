"""Logs are private and capped, and what they lose never reaches an outcome."""

import errno
import os
from pathlib import Path

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import DamagedError, UnavailableError, UsageError
from qinglong_edge.executor.logs import (
    LAST_LINE_BYTES,
    ActionLogs,
    LogFaults,
    LogPart,
    LogWriter,
    RunLog,
    log_name,
    missing_bytes,
    read_log,
)

NAME = "d-1.log"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def logs_dir(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def written(logs: ActionLogs, *pieces: bytes) -> None:
    log = logs.open("d-1")
    for piece in pieces:
        log.write(piece)
    log.close()


@pytest.mark.adr("0007", "2")
def test_a_log_is_made_private_in_a_private_directory(logs_dir: Path) -> None:
    written(ActionLogs(str(logs_dir)), b"one\n", b"two\n")
    assert (logs_dir / NAME).read_bytes() == b"one\ntwo\n"
    assert (logs_dir / NAME).stat().st_mode & 0o7777 == 0o600
    assert logs_dir.stat().st_mode & 0o7777 == 0o700


def test_a_wide_directory_of_ours_is_made_private(logs_dir: Path) -> None:
    logs_dir.mkdir(mode=0o755)
    written(ActionLogs(str(logs_dir)), b"x")
    assert logs_dir.stat().st_mode & 0o7777 == 0o700


@pytest.mark.adr("0007", "2")
@pytest.mark.parametrize("piece", [1, 7, 1_000, 5_000])
def test_beyond_the_cap_bytes_are_counted_and_the_last_line_says_so(
    logs_dir: Path, piece: int
) -> None:
    most = 1_000
    data = bytes(range(256)) * 20
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    logs = ActionLogs(str(logs_dir), most=most)
    written(logs, *pieces)
    kept = most - LAST_LINE_BYTES
    line = b"\n[qinglong-edge: %d bytes dropped]\n" % (len(data) - kept)
    assert (logs_dir / NAME).read_bytes() == data[:kept] + line
    assert (logs_dir / NAME).stat().st_size <= most
    assert logs.faults() == LogFaults(0, 0, len(data) - kept)


def test_output_that_just_fits_is_whole(logs_dir: Path) -> None:
    data = b"x" * (1_000 - LAST_LINE_BYTES)
    logs = ActionLogs(str(logs_dir), most=1_000)
    written(logs, data)
    assert (logs_dir / NAME).read_bytes() == data
    assert logs.faults() == LogFaults(0, 0, 0)


def test_the_cap_of_the_program_leaves_room_for_the_longest_last_line() -> None:
    line = b"\n[qinglong-edge: %d bytes dropped]\n" % 2**64
    assert len(line) <= LAST_LINE_BYTES < limits.ACTION_LOG_BYTES_MAX


def test_a_full_disk_drops_the_rest_and_is_counted(logs_dir: Path) -> None:
    logs = ActionLogs(str(logs_dir))
    log = LogWriter(os.open("/dev/full", os.O_WRONLY), 1_000, logs)
    log.write(b"12345")
    log.write(b"678")
    log.close()
    log.close()
    assert logs.faults() == LogFaults(0, 1, 8)


def test_a_name_that_exists_is_left_alone(logs_dir: Path) -> None:
    logs = ActionLogs(str(logs_dir))
    written(logs, b"first")
    written(logs, b"second")
    assert (logs_dir / NAME).read_bytes() == b"first"
    assert logs.faults() == LogFaults(1, 0, 6)


def test_a_link_in_the_place_of_a_log_is_not_followed(logs_dir: Path, tmp_path: Path) -> None:
    logs_dir.mkdir()
    (logs_dir / NAME).symlink_to(tmp_path / "elsewhere")
    logs = ActionLogs(str(logs_dir))
    written(logs, b"x")
    assert not (tmp_path / "elsewhere").exists()
    assert logs.faults() == LogFaults(1, 0, 1)


def test_a_link_in_the_place_of_the_directory_is_not_followed(
    logs_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    logs_dir.symlink_to(tmp_path / "real")
    logs = ActionLogs(str(logs_dir))
    written(logs, b"x")
    assert list((tmp_path / "real").iterdir()) == []
    assert logs.faults().refused == 1


def test_a_file_in_the_place_of_the_directory_refuses_the_log(logs_dir: Path) -> None:
    logs_dir.write_bytes(b"")
    logs = ActionLogs(str(logs_dir))
    written(logs, b"x")
    assert logs.faults().refused == 1


@ROOT_ONLY
def test_a_foreign_directory_refuses_the_log(logs_dir: Path) -> None:
    logs_dir.mkdir()
    os.chown(logs_dir, 12_345, 12_345)
    logs = ActionLogs(str(logs_dir))
    written(logs, b"x")
    assert list(logs_dir.iterdir()) == []
    assert logs.faults().refused == 1
    with pytest.raises(UnavailableError):
        read_log(str(logs_dir), NAME, most=10)


def test_nothing_stays_open(logs_dir: Path) -> None:
    before = os.listdir("/proc/self/fd")
    logs = ActionLogs(str(logs_dir))
    written(logs, b"x")
    written(logs, b"x")
    read_log(str(logs_dir), NAME, most=10)
    assert os.listdir("/proc/self/fd") == before


def test_a_log_is_read_in_parts(logs_dir: Path) -> None:
    written(ActionLogs(str(logs_dir)), b"0123456789")
    assert read_log(str(logs_dir), NAME, most=4) == LogPart(b"0123", True)
    assert read_log(str(logs_dir), NAME, most=4, offset=4) == LogPart(b"4567", True)
    assert read_log(str(logs_dir), NAME, most=4, offset=8) == LogPart(b"89", False)
    assert read_log(str(logs_dir), NAME, most=10) == LogPart(b"0123456789", False)
    assert read_log(str(logs_dir), NAME, most=4, offset=99) == LogPart(b"", False)


def test_a_log_that_is_not_there_is_none(logs_dir: Path) -> None:
    assert read_log(str(logs_dir), NAME, most=10) is None
    logs_dir.mkdir()
    assert read_log(str(logs_dir), NAME, most=10) is None


@pytest.mark.parametrize("name", ["", ".", "..", "../x.log", "a/b.log", "/etc/passwd", "x" * 69])
def test_a_name_that_leads_elsewhere_is_a_usage_error(logs_dir: Path, name: str) -> None:
    with pytest.raises(UsageError):
        read_log(str(logs_dir), name, most=10)


def test_the_name_of_a_log_comes_from_a_proven_id() -> None:
    assert log_name("d-1") == NAME
    with pytest.raises(UsageError):
        log_name("../x")


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "directory"])
def test_what_is_no_private_regular_file_is_not_read(
    logs_dir: Path, tmp_path: Path, kind: str
) -> None:
    logs_dir.mkdir()
    other = tmp_path / "other"
    other.write_bytes(b"secret")
    path = logs_dir / NAME
    if kind == "symlink":
        path.symlink_to(other)
    elif kind == "hard link":
        path.hardlink_to(other)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(DamagedError) as caught:
        read_log(str(logs_dir), NAME, most=10)
    assert caught.value.code == "log_damaged"


@ROOT_ONLY
def test_a_foreign_log_is_not_read(logs_dir: Path) -> None:
    written(ActionLogs(str(logs_dir)), b"x")
    os.chown(logs_dir / NAME, 12_345, 12_345)
    with pytest.raises(DamagedError):
        read_log(str(logs_dir), NAME, most=10)


# The log of a task.


@pytest.mark.parametrize("piece", [1, 7, 1_000, 5_000])
@pytest.mark.parametrize("size", [0, 999, 1_000, 1_001, 5_120])
def test_a_run_log_holds_its_cap_and_says_beside_it_what_is_missing(
    logs_dir: Path, size: int, piece: int
) -> None:
    data = bytes(range(256)) * 20
    log = RunLog(str(logs_dir), "att-1", 1_000)
    assert missing_bytes(str(logs_dir), "att-1") is None
    for at in range(0, size, piece):
        log.write(data[at : min(at + piece, size)])
    missing = max(0, size - 1_000)
    assert log.close() == missing
    assert (logs_dir / "att-1.log").read_bytes() == data[: min(size, 1_000)]
    assert missing_bytes(str(logs_dir), "att-1") == missing
    assert (logs_dir / "att-1.log.missing").exists() == (missing > 0)


def test_files_of_a_run_log_are_private_whatever_the_umask(logs_dir: Path) -> None:
    mask = os.umask(0)
    try:
        RunLog(str(logs_dir), "att-1", 0).write(b"x")
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o7777 for path in logs_dir.iterdir()}
    assert modes == {"att-1.log": 0o600, "att-1.log.missing": 0o600}


def test_a_full_disk_leaves_the_run_log_unknown_and_never_whole(
    logs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RunLog(str(logs_dir), "att-1", 1_000)

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    log.write(b"12345")
    assert log.close() == 5
    assert missing_bytes(str(logs_dir), "att-1") is None


def test_a_run_log_that_is_discarded_leaves_nothing(logs_dir: Path) -> None:
    before = os.listdir("/proc/self/fd")
    RunLog(str(logs_dir), "att-1", 1_000).discard()
    assert list(logs_dir.iterdir()) == []
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("name", ["att-1.log", "att-1.log.missing"])
def test_a_taken_name_refuses_the_run_log_and_is_left_alone(logs_dir: Path, name: str) -> None:
    before = os.listdir("/proc/self/fd")
    logs_dir.mkdir()
    (logs_dir / name).write_bytes(b"first")
    with pytest.raises(FileExistsError):
        RunLog(str(logs_dir), "att-1", 1_000)
    assert {path.name: path.read_bytes() for path in logs_dir.iterdir()} == {name: b"first"}
    assert os.listdir("/proc/self/fd") == before


def test_a_directory_that_is_swapped_gets_no_byte(logs_dir: Path, tmp_path: Path) -> None:
    log = RunLog(str(logs_dir), "att-1", 2)
    logs_dir.rename(tmp_path / "moved")
    (tmp_path / "foreign").mkdir()
    logs_dir.symlink_to(tmp_path / "foreign")
    log.write(b"12345")
    assert log.close() == 3
    assert list((tmp_path / "foreign").iterdir()) == []
    assert missing_bytes(str(tmp_path / "moved"), "att-1") == 3
