"""Clocks and entropy come from this machine."""

import time
from pathlib import Path

import pytest

from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.executor.ambient import BOOT_ID_PATH, SystemClocks, system_entropy


def test_a_reading_holds_the_wall_the_boot_time_and_the_boot_id() -> None:
    before = time.time_ns() // 1_000_000, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    found = SystemClocks().read()
    after = time.time_ns() // 1_000_000, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    assert before[0] <= found.wall_ms <= after[0]
    assert before[1] <= found.boot_ms <= after[1]
    assert found.boot_id == Path(BOOT_ID_PATH).read_text().strip()


def test_monotonic_time_is_in_milliseconds_and_grows() -> None:
    clocks = SystemClocks()
    before = time.monotonic_ns() // 1_000_000
    found = clocks.monotonic_ms()
    assert before <= found <= clocks.monotonic_ms()


def test_the_boot_id_is_read_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "boot_id"
    path.write_text("first-boot\n")
    clocks = SystemClocks(boot_id_path=str(path))
    assert clocks.read().boot_id == "first-boot"
    path.write_text("second-boot\n")
    assert clocks.read().boot_id == "first-boot"


def test_a_boot_id_that_was_drawn_for_this_start_is_used(tmp_path: Path) -> None:
    clocks = SystemClocks("drawn", boot_id_path=str(tmp_path / "absent"))
    assert clocks.read().boot_id == "drawn"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"two words\n", b"\xff\xfe", b"x" * 100])
def test_a_boot_id_that_cannot_be_read_is_unavailable(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "boot_id"
    if content is not None:
        path.write_bytes(content)
    clocks = SystemClocks(boot_id_path=str(path))
    with pytest.raises(UnavailableError) as caught:
        clocks.read()
    assert caught.value.code == "boot_id_unreadable"
    path.write_text("later\n")
    assert clocks.read().boot_id == "later"


def test_entropy_draws_as_many_bytes_as_asked() -> None:
    assert [len(system_entropy(size)) for size in (0, 1, 16)] == [0, 1, 16]
    assert system_entropy(16) != system_entropy(16)
