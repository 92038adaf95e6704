"""The number beside the database: only a well-formed larger one accuses."""

import os
from pathlib import Path

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.storage.sqlite import epoch_file


def test_what_was_written_is_read(tmp_path: Path) -> None:
    for epoch in (1, 9, 10, limits.EPOCH_MAX, 7):
        epoch_file.write(str(tmp_path), epoch)
        assert epoch_file.read(str(tmp_path)) == epoch
    assert (tmp_path / "epoch").read_bytes() == b"7\n"
    assert [each.name for each in tmp_path.iterdir()] == ["epoch"]


def test_it_is_rewritten_in_place(tmp_path: Path) -> None:
    epoch_file.write(str(tmp_path), 1)
    before = (tmp_path / "epoch").stat()
    epoch_file.write(str(tmp_path), 2)
    after = (tmp_path / "epoch").stat()
    assert (after.st_ino, after.st_mode & 0o777) == (before.st_ino, 0o600)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n", b"0\n", b"-1\n", b"+1\n", b"01\n", b" 1\n", b"1\n\n", b"1 2\n", b"1.0\n", b"x",
        b"1_0\n", "\u0663".encode(), b"1\0", b"\0\0\0", b"2097152\n", b"9" * 32, b"1" + b"\n" * 40,
    ],
)  # fmt: skip
def test_what_is_malformed_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "epoch").write_bytes(content)
    assert epoch_file.read(str(tmp_path)) is None
    epoch_file.check(str(tmp_path), 1)


def test_a_missing_file_or_directory_counts_as_absent(tmp_path: Path) -> None:
    assert epoch_file.read(str(tmp_path)) is None
    assert epoch_file.read(str(tmp_path / "none")) is None


def test_a_planted_link_pipe_or_directory_counts_as_absent(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("9\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "epoch").symlink_to(tmp_path / "other")
    (tmp_path / "b" / "epoch").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "c" / "epoch")
    for name in "abc":
        epoch_file.write(str(tmp_path / name), 3)
        assert epoch_file.read(str(tmp_path / name)) is None
    assert (tmp_path / "other").read_text() == "9\n"


@pytest.mark.parametrize("newest", [5, 6])
def test_a_number_that_is_not_larger_accuses_nobody(tmp_path: Path, newest: int) -> None:
    epoch_file.write(str(tmp_path), 5)
    epoch_file.check(str(tmp_path), newest)


@pytest.mark.adr("0002", "7")
def test_a_larger_number_is_a_database_that_was_put_back(tmp_path: Path) -> None:
    epoch_file.write(str(tmp_path), 5)
    with pytest.raises(DamagedError) as damaged:
        epoch_file.check(str(tmp_path), 4)
    assert damaged.value.code == "store_rolled_back"
    assert damaged.value.details == {"epoch": 4, "epoch_seen": 5}


def test_a_failed_write_leaves_the_older_number(tmp_path: Path) -> None:
    epoch_file.write(str(tmp_path / "none"), 5)
    assert list(tmp_path.iterdir()) == []
