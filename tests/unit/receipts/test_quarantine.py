"""A receipt that was used is removed, one that is not believed is kept, and all may be repeated."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.domain.errors import DamagedError, UnavailableError
from qinglong_edge.receipts import private
from tests.support.receipts import ATTEMPT, BODY, OTHER, put, receipts, shard, tree

SHARD = ATTEMPT[:2]
TORN = BODY[:100]


def kept_as(data: bytes, attempt_id: str = ATTEMPT) -> str:
    return f".quarantine/{SHARD}/{attempt_id}.{sha256_hex(data)}.json"


# Removing.


def test_a_receipt_is_removed_once_with_what_its_publication_left(tmp_path: Path) -> None:
    path = put(tmp_path, TORN)
    put(tmp_path, BODY, OTHER)
    os.link(path, path.with_name(f".{ATTEMPT}.{'0' * 32}.tmp"))
    path.with_name(f".{ATTEMPT}.{'1' * 32}.tmp").write_bytes(b"x")
    others = path.with_name(f".{OTHER}.{'1' * 32}.tmp")
    others.write_bytes(b"room")
    store = receipts(tmp_path)
    assert [store.remove(ATTEMPT), store.remove(ATTEMPT)] == [True, False]
    assert sorted(os.listdir(shard(tmp_path))) == [others.name, f"{OTHER}.json"]


def test_what_a_publication_left_is_removed_without_a_receipt_as_well(tmp_path: Path) -> None:
    (shard(tmp_path) / f".{ATTEMPT}.{'1' * 32}.tmp").write_bytes(b"x")
    assert not receipts(tmp_path).remove(ATTEMPT)
    assert tree(tmp_path) == {}


def test_nothing_is_removed_where_nothing_was_ever_published(tmp_path: Path) -> None:
    assert not receipts(tmp_path).remove(ATTEMPT)
    assert os.listdir(tmp_path) == []


@pytest.mark.run_scenario(30)
def test_a_link_is_removed_and_what_it_leads_to_is_not(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(BODY)
    (shard(tmp_path) / f"{ATTEMPT}.json").symlink_to(tmp_path / "victim")
    assert receipts(tmp_path).remove(ATTEMPT)
    assert tree(tmp_path) == {"victim": BODY}


def test_a_directory_in_the_place_of_a_receipt_is_removed_only_while_it_is_empty(
    tmp_path: Path,
) -> None:
    inside = shard(tmp_path) / f"{ATTEMPT}.json" / "evidence"
    inside.parent.mkdir()
    inside.write_bytes(b"x")
    with pytest.raises(UnavailableError):
        receipts(tmp_path).remove(ATTEMPT)
    inside.unlink()
    assert receipts(tmp_path).remove(ATTEMPT)


def test_what_belongs_to_a_longer_id_is_not_removed(tmp_path: Path) -> None:
    others = put(tmp_path).with_name(f".{SHARD}.x.{'1' * 32}.tmp")
    others.write_bytes(b"room")
    put(tmp_path, TORN, SHARD)
    assert receipts(tmp_path).remove(SHARD)
    assert sorted(os.listdir(shard(tmp_path))) == [others.name, f"{ATTEMPT}.json"]


def test_every_change_of_a_directory_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def noted(file: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{file}"), tmp_path))
        real(file)

    def syncs(call: Callable[[str], object]) -> list[str]:
        synced.clear()
        assert call(ATTEMPT)
        return [*synced]

    monkeypatch.setattr(os, "fsync", noted)
    store = receipts(tmp_path)
    here, kept = f"receipts/{SHARD}", f"receipts/.quarantine/{SHARD}"
    put(tmp_path)
    assert syncs(store.remove) == [here]
    put(tmp_path)
    assert syncs(store.quarantine) == ["receipts", "receipts/.quarantine", kept, here]
    put(tmp_path)
    assert syncs(store.quarantine) == [here], "it is there already"
    assert syncs(store.purge) == [kept]
    (shard(tmp_path) / f"{ATTEMPT}.json").mkdir()
    assert syncs(store.quarantine) == [kept, here]


# Moving out of the way.


@pytest.mark.run_scenario(29)
def test_a_receipt_moves_to_where_it_was_said_to_go(tmp_path: Path) -> None:
    put(tmp_path, TORN)
    store = receipts(tmp_path)
    said = store.reference(ATTEMPT)
    assert said == kept_as(TORN)
    assert not (tmp_path / "receipts" / ".quarantine").exists()
    assert store.quarantine(ATTEMPT) == said
    assert store.read(ATTEMPT) is None
    assert tree(tmp_path) == {f"receipts/{said}": TORN}
    for directory in (".quarantine", f".quarantine/{SHARD}"):
        assert stat.S_IMODE((tmp_path / "receipts" / directory).stat().st_mode) == 0o700
    assert (tmp_path / "receipts" / said).stat().st_nlink == 1
    assert len(said) <= 255
    assert ".." not in said


@pytest.mark.run_scenario(37)
def test_nothing_moves_where_nothing_is(tmp_path: Path) -> None:
    store = receipts(tmp_path)
    assert (store.reference(ATTEMPT), store.quarantine(ATTEMPT), store.purge(ATTEMPT)) == (
        None,
        None,
        False,
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.run_scenario(35)
def test_moving_twice_answers_alike(tmp_path: Path) -> None:
    put(tmp_path, TORN)
    store = receipts(tmp_path)
    answers = [store.quarantine(ATTEMPT), store.quarantine(ATTEMPT), store.reference(ATTEMPT)]
    assert answers == [kept_as(TORN)] * 3


@pytest.mark.run_scenario(36)
def test_newer_evidence_is_kept_beside_older_and_the_same_only_once(tmp_path: Path) -> None:
    """Upstream keeps the older and drops the newer (W11)."""
    store = receipts(tmp_path)
    for data in (TORN, BODY, TORN, BODY):
        put(tmp_path, data)
        assert store.quarantine(ATTEMPT) == kept_as(data)
        assert store.read(ATTEMPT) is None
    assert tree(tmp_path / "receipts") == {kept_as(BODY): BODY, kept_as(TORN): TORN}


def crashed(monkeypatch: pytest.MonkeyPatch, call: str, move: Callable[[], object]) -> None:
    """Let a move end before its n-th kind of step, as a crash would."""

    def dying(*_a: Any, **_k: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, call, dying)
        with pytest.raises(KeyboardInterrupt):
            move()


@pytest.mark.run_scenario(35)
@pytest.mark.parametrize("call", ["mkdir", "link", "unlink", "fsync"])
def test_a_move_that_ended_halfway_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    put(tmp_path, TORN)
    store = receipts(tmp_path)
    crashed(monkeypatch, call, lambda: store.quarantine(ATTEMPT))
    assert TORN in tree(tmp_path).values()
    assert store.reference(ATTEMPT) == kept_as(TORN)
    assert store.quarantine(ATTEMPT) == kept_as(TORN)
    assert tree(tmp_path / "receipts") == {kept_as(TORN): TORN}


@pytest.mark.run_scenario(30, 31)
def test_what_is_no_file_moves_as_it_is_and_is_not_opened(tmp_path: Path) -> None:
    store = receipts(tmp_path)
    (tmp_path / "victim").write_bytes(BODY)
    path = shard(tmp_path) / f"{ATTEMPT}.json"
    plants: list[Callable[[], object]] = [
        lambda: path.symlink_to(tmp_path / "victim"),
        lambda: os.mkfifo(path),
        path.mkdir,
        lambda: (path / "inside").mkdir(parents=True),
    ]
    seen = set()
    for plant in plants:
        plant()
        inode = path.lstat().st_ino
        said = store.reference(ATTEMPT)
        assert said is not None
        assert store.quarantine(ATTEMPT) == said
        assert (tmp_path / "receipts" / said).lstat().st_ino == inode
        assert store.read(ATTEMPT) is None
        seen.add(said)
    assert len(seen) == len(plants)
    assert (tmp_path / "victim").read_bytes() == BODY


@pytest.mark.run_scenario(32)
@pytest.mark.parametrize("size", [0, 4_096, 4_097])
def test_a_loose_or_oversized_file_moves_with_its_content(tmp_path: Path, size: int) -> None:
    put(tmp_path, b"x" * size).chmod(0o666)
    said = receipts(tmp_path).quarantine(ATTEMPT)
    assert said is not None
    assert tree(tmp_path / "receipts") == {said: b"x" * size}
    assert (said == kept_as(b"x" * size)) == (size <= 4_096)


@pytest.mark.run_scenario(32)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else_moves_too(tmp_path: Path) -> None:
    os.chown(put(tmp_path), 65_534, 65_534)
    store = receipts(tmp_path)
    said = store.quarantine(ATTEMPT)
    assert said is not None
    assert tree(tmp_path / "receipts") == {said: BODY}
    assert store.purge(ATTEMPT)


def test_a_file_that_is_replaced_while_it_moves_stays_and_is_answered_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, TORN)
    real = os.link

    def replaced(*args: Any, **more: Any) -> None:
        monkeypatch.undo()
        path.unlink()
        put(tmp_path, BODY)
        real(*args, **more)

    monkeypatch.setattr(os, "link", replaced)
    store = receipts(tmp_path)
    store.quarantine(ATTEMPT)
    assert tree(tmp_path / "receipts") == {f"{SHARD}/{path.name}": BODY}
    assert store.quarantine(ATTEMPT) == kept_as(BODY)
    assert tree(tmp_path / "receipts") == {kept_as(BODY): BODY}


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_is_not_what_was_seen_is_not_moved(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path, TORN)
    with private.entered(str(tmp_path), "receipts", SHARD) as at:
        seen = private.identity(at, path.name)
        os.rename(path, path.with_name("older"))
        put(tmp_path, BODY) if kind == "file" else path.mkdir()
        assert not private.move((at, path.name), (at, "kept"), seen)
    assert sorted(os.listdir(shard(tmp_path))) == [path.name, "older"]


@pytest.mark.run_scenario(34)
@pytest.mark.parametrize("where", [".quarantine", f".quarantine/{SHARD}"])
def test_a_quarantine_that_leads_elsewhere_is_refused(tmp_path: Path, where: str) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state.mkdir()
    (elsewhere / SHARD).mkdir(parents=True, mode=0o700)
    put(state, TORN)
    link = state / "receipts" / where
    link.parent.mkdir(mode=0o700, exist_ok=True)
    link.symlink_to(elsewhere)
    store = receipts(state)
    for call in (store.quarantine, store.purge):
        with pytest.raises(DamagedError):
            call(ATTEMPT)
    assert tree(elsewhere) == {}
    assert tree(state) == {f"receipts/{SHARD}/{ATTEMPT}.json": TORN}


# Purging.


def test_purging_drops_all_evidence_of_one_attempt_and_no_other(tmp_path: Path) -> None:
    store = receipts(tmp_path)
    longer = f"{SHARD}.x"
    for attempt_id, data in ((ATTEMPT, TORN), (ATTEMPT, BODY), (OTHER, TORN), (longer, TORN)):
        put(tmp_path, data, attempt_id)
        store.quarantine(attempt_id)
    put(tmp_path, TORN)
    (shard(tmp_path) / f"{ATTEMPT}.json").unlink()
    (shard(tmp_path) / f"{ATTEMPT}.json").mkdir()
    store.quarantine(ATTEMPT)
    assert [store.purge(ATTEMPT), store.purge(ATTEMPT), store.purge(SHARD)] == [True, False, False]
    left = {kept_as(TORN, OTHER): TORN, kept_as(TORN, longer): TORN}
    assert tree(tmp_path / "receipts") == left
    assert len(os.listdir(tmp_path / "receipts" / ".quarantine" / SHARD)) == len(left)
