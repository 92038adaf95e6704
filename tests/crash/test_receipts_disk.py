"""Take room, inodes or the right to write away from a small real file system under receipts."""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path

import pytest

from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.ports.receipts import Published
from tests.support.disk import Disk, disk, needs_disk
from tests.support.receipts import ATTEMPT, BODY, OTHER, RECEIPT, put, receipts, shard, tree

pytestmark = needs_disk
BLOCK = b"\0" * 1_024


def until_full(steps: Iterable[Callable[[], object]]) -> None:
    """Go on until the disk has no room for the next step."""

    def go_on() -> None:
        for step in steps:
            step()

    with pytest.raises(OSError, match="No space"):
        go_on()


class Small:
    """Be a state on a small disk, reached through the namespace that has it mounted."""

    def __init__(self, made: Disk) -> None:
        self.disk = made
        self.state = made.inside / "state"
        self.state.mkdir(mode=0o700)

    def fill(self) -> None:
        """Take every free block."""
        with (self.disk.inside / "fill").open("wb", buffering=0) as file:
            until_full(repeat(lambda: file.write(BLOCK)))
            os.fsync(file)

    def take_inodes(self) -> None:
        place = self.disk.inside / "many"
        place.mkdir()
        until_full((place / str(nth)).touch for nth in range(10_000))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    with disk(tmp_path) as made:
        yield Small(made)


@pytest.fixture(params=["A", "B"])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "B":
        monkeypatch.setattr("qinglong_edge.receipts.publish._open_unnamed", lambda _at: -1)
    return str(request.param)


def unavailable(word: str, call: object, *args: object) -> None:
    assert callable(call)
    with pytest.raises(UnavailableError) as caught:
        call(*args)
    assert caught.value.code == word


@pytest.mark.run_scenario(25)
def test_what_was_reserved_can_be_published_on_a_full_disk(small: Small, level: str) -> None:
    store = receipts(small.state)
    reserve = store.reserve(ATTEMPT)
    small.fill()
    unavailable("disk_full", store.reserve, OTHER)
    assert reserve.publish(BODY) is Published.NEW
    assert store.read(ATTEMPT) == RECEIPT
    assert list(tree(small.state)) == [f"receipts/{ATTEMPT[:2]}/{ATTEMPT}.json"]


@pytest.mark.run_scenario(25)
def test_a_full_disk_refuses_the_start_and_keeps_what_is_there(small: Small, level: str) -> None:
    put(small.state)
    store = receipts(small.state)
    small.fill()
    unavailable("disk_full", store.reserve, OTHER)
    assert store.read(ATTEMPT) == RECEIPT
    assert os.listdir(shard(small.state)) == [f"{ATTEMPT}.json"]
    assert store.remove(ATTEMPT)
    small.disk.free()
    assert store.reserve(OTHER).publish(BODY) is Published.NEW


@pytest.mark.run_scenario(25)
def test_the_first_directory_on_a_full_disk_is_refused_as_well(small: Small) -> None:
    small.fill()
    unavailable("disk_full", receipts(small.state).reserve, ATTEMPT)
    assert tree(small.state) == {}
    small.disk.free()
    assert receipts(small.state).reserve(ATTEMPT).publish(BODY) is Published.NEW


@pytest.mark.run_scenario(150)
def test_a_disk_without_inodes_is_a_full_disk(small: Small, level: str) -> None:
    put(small.state)
    store = receipts(small.state)
    reserve = store.reserve(OTHER)
    small.take_inodes()
    unavailable("disk_full", store.reserve, "01-more")
    assert reserve.publish(BODY) is Published.NEW
    assert store.read(ATTEMPT) == RECEIPT


@pytest.mark.run_scenario(26, 50)
def test_a_disk_that_cannot_be_written_can_be_read_and_keeps_its_receipts(small: Small) -> None:
    put(small.state)
    store = receipts(small.state)
    before = tree(small.state)
    small.disk.remount("ro")
    for call in (store.remove, store.quarantine):
        unavailable("read_only", call, ATTEMPT)
    unavailable("read_only", store.reserve, OTHER)
    assert (store.read(ATTEMPT), store.read(OTHER)) == (RECEIPT, None)
    small.disk.remount("rw")
    assert tree(small.state) == before
    assert store.remove(ATTEMPT)


@pytest.mark.run_scenario(26)
def test_a_disk_that_fails_under_a_reserve_shows_no_part_of_a_receipt(
    small: Small, level: str
) -> None:
    reserve = receipts(small.state).reserve(ATTEMPT)
    small.disk.remount("abort")  # what a kernel does to a disk whose journal it cannot write
    with pytest.raises(UnavailableError) as caught:
        reserve.publish(BODY)
    assert caught.value.code in {"read_only", "storage_error"}
    assert receipts(small.state).read(ATTEMPT) is None
