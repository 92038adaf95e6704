"""Reading answers a receipt, an absence or what is wrong; everything else is asked again."""

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.domain.completion import completion_bytes
from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.receipts import private
from qinglong_edge.receipts.store import Invalid
from tests.support.receipts import (
    ATTEMPT,
    BODY,
    OTHER,
    RECEIPT,
    put,
    receipts,
    sealed,
    shard,
    tree,
)


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Fail whatever hangs on a file that is none."""
    signal.alarm(10)
    yield
    signal.alarm(0)


def test_what_was_published_is_read(tmp_path: Path) -> None:
    put(tmp_path)
    assert receipts(tmp_path).read(ATTEMPT) == RECEIPT


def test_a_receipt_that_is_not_there_is_absent_and_nothing_is_made(tmp_path: Path) -> None:
    assert receipts(tmp_path).read(ATTEMPT) is None
    assert os.listdir(tmp_path) == []
    put(tmp_path, attempt_id=OTHER)
    assert receipts(tmp_path).read(ATTEMPT) is None


def plant_symlink(path: Path, state: Path) -> None:
    victim = state / "victim"
    victim.write_bytes(BODY)
    victim.chmod(0o600)
    path.symlink_to(victim)


def plant_dangling(path: Path, _state: Path) -> None:
    path.symlink_to("nowhere")


def plant_directory(path: Path, _state: Path) -> None:
    path.mkdir()


def plant_fifo(path: Path, _state: Path) -> None:
    os.mkfifo(path, 0o600)


def plant_socket(path: Path, state: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(state / "s"))  # a socket's own path has a short bound
    os.rename(state / "s", path)


def plant_device(path: Path, _state: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make devices")
    os.mknod(path, 0o020600, os.makedev(1, 5))  # /dev/zero: reads as much as anybody asks for


PLANTED: list[Callable[[Path, Path], None]] = [
    plant_symlink, plant_dangling, plant_directory, plant_fifo, plant_socket, plant_device,
]  # fmt: skip


@pytest.mark.run_scenario(30, 31)
@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_no_file_is_invalid_and_not_even_opened(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    plant(shard(tmp_path) / f"{ATTEMPT}.json", tmp_path)
    assert receipts(tmp_path).read(ATTEMPT) == Invalid("not_regular")
    assert tree(tmp_path).get("victim", BODY) == BODY


@pytest.mark.run_scenario(32)
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o610, 0o601])
def test_a_file_that_others_may_touch_is_invalid(tmp_path: Path, mode: int) -> None:
    put(tmp_path).chmod(mode)
    assert receipts(tmp_path).read(ATTEMPT) == Invalid("loose_mode")


@pytest.mark.run_scenario(32)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else_is_invalid(tmp_path: Path) -> None:
    os.chown(put(tmp_path), 65_534, 65_534)
    assert receipts(tmp_path).read(ATTEMPT) == Invalid("foreign_owner")


@pytest.mark.run_scenario(32)
def test_a_second_name_is_invalid_unless_it_is_that_of_the_publication(tmp_path: Path) -> None:
    path = put(tmp_path)
    second = path.with_name(f".{ATTEMPT}.{'0' * 32}.tmp")
    os.link(path, second)
    assert receipts(tmp_path).read(ATTEMPT) == RECEIPT
    os.rename(second, path.with_name(f".{OTHER}.{'0' * 32}.tmp"))
    assert receipts(tmp_path).read(ATTEMPT) == Invalid("linked")
    path.with_name(f".{ATTEMPT}.{'1' * 32}.tmp").write_bytes(BODY)  # its own, of no use
    assert receipts(tmp_path).read(ATTEMPT) == Invalid("linked")
    os.link(path, second)
    assert receipts(tmp_path).read(ATTEMPT) == Invalid("linked")


@pytest.mark.run_scenario(18, 29)
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty"),
        (BODY[: len(BODY) // 2], "malformed"),
        (BODY[:-1], "malformed"),
        (b"\0" * 4_096, "malformed"),
        (BODY + b"\n", "malformed"),
        (bytes(reversed(BODY)), "malformed"),
        (b"x" * 4_096, "malformed"),
        (b"x" * 4_097, "too_large"),
        (BODY.ljust(1_000_000), "too_large"),
    ],
)
def test_torn_garbled_and_oversized_files_are_invalid(
    tmp_path: Path, data: bytes, code: str
) -> None:
    put(tmp_path, data)
    assert receipts(tmp_path).read(ATTEMPT) == Invalid(code)


@pytest.mark.run_scenario(33)
def test_the_receipt_of_another_attempt_is_invalid_here_and_good_there(tmp_path: Path) -> None:
    other = sealed(attempt_id=OTHER)
    put(tmp_path, completion_bytes(other))
    put(tmp_path, completion_bytes(other), OTHER)
    assert receipts(tmp_path).read(ATTEMPT) == Invalid("other_attempt")
    assert receipts(tmp_path).read(OTHER) == other


@pytest.mark.run_scenario(50)
@pytest.mark.parametrize("call", ["stat", "open", "fstat", "pread", "scandir"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EMFILE, errno.ELOOP])
def test_an_error_of_the_system_is_no_word_about_the_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    path = put(tmp_path)
    os.link(path, path.with_name(f".{ATTEMPT}.{'0' * 32}.tmp"))  # so that it is looked for
    real = getattr(os, call)

    def failing(*args: Any, **more: Any) -> Any:
        if call == "open" and str(args[0]) != path.name:
            return real(*args, **more)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(UnavailableError):
        receipts(tmp_path).read(ATTEMPT)
    monkeypatch.undo()
    assert receipts(tmp_path).read(ATTEMPT) == RECEIPT


def swapped(monkeypatch: pytest.MonkeyPatch, call: str, change: Callable[[], object]) -> None:
    """Let the file change in the moment after a call on it."""
    real = getattr(os, call)

    def then(*args: Any, **more: Any) -> Any:
        answer = real(*args, **more)
        if call != "stat" or str(args[0]).endswith(".json"):
            monkeypatch.undo()
            change()
        return answer

    monkeypatch.setattr(os, call, then)


def test_a_file_that_is_swapped_before_it_is_opened_is_judged_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path)

    def into_fifo() -> None:
        path.unlink()
        os.mkfifo(path, 0o600)

    swapped(monkeypatch, "stat", into_fifo)
    assert receipts(tmp_path).read(ATTEMPT) == Invalid("not_regular")


def test_a_file_that_vanishes_before_it_is_opened_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path)
    swapped(monkeypatch, "stat", path.unlink)
    assert receipts(tmp_path).read(ATTEMPT) is None


@pytest.mark.parametrize("size", [len(BODY) - 1, len(BODY) + 1, 4_097])
def test_a_file_that_changes_while_it_is_read_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = put(tmp_path)
    swapped(monkeypatch, "pread", lambda: os.truncate(path, size))
    assert receipts(tmp_path).read(ATTEMPT) == Invalid("changed")


def test_a_file_that_grows_before_it_is_read_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path)

    def grown(file: int, size: int, at: int) -> bytes:
        monkeypatch.undo()
        os.truncate(path, 4_097)
        return os.pread(file, size, at)

    monkeypatch.setattr(os, "pread", grown)
    assert receipts(tmp_path).read(ATTEMPT) == Invalid("too_large")


def test_a_temporary_that_is_dropped_while_it_is_looked_for_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path)
    temporary = path.with_name(f".{ATTEMPT}.{'0' * 32}.tmp")
    os.link(path, temporary)
    real = private.temporaries

    def dropped(at: int, name: str) -> Any:
        found = list(real(at, name))
        temporary.unlink()
        return found

    monkeypatch.setattr(private, "temporaries", dropped)
    assert receipts(tmp_path).read(ATTEMPT) == RECEIPT
