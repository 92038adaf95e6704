"""A receipt appears whole under its name, once, in private directories, at either level."""

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.domain.completion import completion_bytes
from qinglong_edge.domain.errors import (
    DamagedError,
    QinglongError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from qinglong_edge.executor.ambient import system_entropy
from qinglong_edge.ports.probe import CrashPoint, Moment, Step
from qinglong_edge.ports.receipts import Published
from qinglong_edge.receipts import publish
from qinglong_edge.receipts.store import CompletionReceipts
from tests.support.receipts import ATTEMPT, BODY, OTHER, RECEIPT, put, receipts, sealed, shard, tree

FINAL = f"receipts/{ATTEMPT[:2]}/{ATTEMPT}.json"
WORDS = {errno.ENOSPC: "disk_full", errno.EROFS: "read_only", errno.EIO: "storage_error"}
ELSE = completion_bytes(sealed(exit_code=3))


@pytest.fixture(params=["A", "B"])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Publish at each level; B is what a kernel without unnamed files leads to."""
    if request.param == "B":
        fail(monkeypatch, "open", errno.EOPNOTSUPP, when=lambda path, *_a: path == ".")
    return str(request.param)


def fail(
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    *,
    when: Callable[..., bool] = lambda *_a, **_k: True,
) -> None:
    """Let a call of the system fail as it does on machines that are not here."""
    real = getattr(os, call)

    def failing(*args: Any, **more: Any) -> Any:
        if when(*args):
            raise OSError(code, os.strerror(code))
        return real(*args, **more)

    monkeypatch.setattr(os, call, failing)


def modes(state: Path) -> dict[str, int]:
    return {
        str(path.relative_to(state)): stat.S_IMODE(path.stat().st_mode) for path in state.rglob("*")
    }


@pytest.mark.run_scenario(22)
def test_a_receipt_is_private_whatever_the_umask_and_leaves_nothing_beside_it(
    tmp_path: Path, level: str
) -> None:
    old = os.umask(0)
    try:
        reserve = receipts(tmp_path).reserve(ATTEMPT)
        assert (reserve.temporary is None) == (level == "A")
        assert reserve.publish(BODY) is Published.NEW
    finally:
        os.umask(old)
    assert tree(tmp_path) == {FINAL: BODY}
    assert modes(tmp_path) == {"receipts": 0o700, os.path.dirname(FINAL): 0o700, FINAL: 0o600}
    assert (tmp_path / FINAL).stat().st_nlink == 1
    assert receipts(tmp_path).read(ATTEMPT) == RECEIPT


def test_a_reserve_takes_its_room_at_once_and_nobody_sees_it(tmp_path: Path, level: str) -> None:
    reserve = receipts(tmp_path).reserve(ATTEMPT)
    assert os.fstat(reserve._file).st_blocks * 512 >= 4_096
    assert receipts(tmp_path).read(ATTEMPT) is None
    assert len(os.listdir(shard(tmp_path))) == (level == "B")
    before = len(os.listdir("/proc/self/fd"))
    reserve.close()
    reserve.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert tree(tmp_path) == {}


def test_a_reserve_is_not_inherited_by_the_task(tmp_path: Path, level: str) -> None:
    reserve = receipts(tmp_path).reserve(ATTEMPT)
    assert not os.get_inheritable(reserve._file)
    assert not os.get_inheritable(reserve._at)
    reserve.close()


@pytest.mark.run_scenario(23)
@pytest.mark.parametrize(
    ("data", "answer"), [(BODY, Published.SAME), (ELSE, Published.OTHER), (b"", Published.OTHER)]
)
def test_a_name_is_never_given_twice(
    tmp_path: Path, level: str, data: bytes, answer: Published
) -> None:
    store = receipts(tmp_path)
    first, second = store.reserve(ATTEMPT), store.reserve(ATTEMPT)
    assert first.publish(BODY) is Published.NEW
    assert second.publish(data) is answer
    assert tree(tmp_path) == {FINAL: BODY}


@pytest.mark.run_scenario(30, 31)
def test_whatever_has_the_name_is_left_alone(tmp_path: Path, level: str) -> None:
    victim = tmp_path / "victim"
    plants: list[Callable[[Path], object]] = [
        lambda path: path.symlink_to(victim),
        Path.mkdir,
        os.mkfifo,
    ]
    for nth, plant in enumerate(plants):
        attempt_id = f"01-{nth}"
        path = shard(tmp_path) / f"{attempt_id}.json"
        plant(path)
        seen = path.lstat()
        assert receipts(tmp_path).reserve(attempt_id).publish(BODY) is Published.OTHER
        assert os.path.samestat(path.lstat(), seen)
    assert not victim.exists()


@pytest.mark.run_scenario(24)
def test_of_writers_at_once_one_wins_and_the_others_are_told(tmp_path: Path, level: str) -> None:
    store = receipts(tmp_path)
    bodies = [completion_bytes(sealed(exit_code=code)) for code in range(8)]
    reserves = [store.reserve(ATTEMPT) for _ in bodies]
    answers: dict[int, Published] = {}
    ready = threading.Barrier(len(bodies))

    def write(nth: int) -> None:
        ready.wait()
        answers[nth] = reserves[nth].publish(bodies[nth])

    threads = [threading.Thread(target=write, args=(nth,)) for nth in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [nth for nth, answer in answers.items() if answer is Published.NEW]
    assert len(winners) == 1
    assert [*answers.values()].count(Published.OTHER) == len(bodies) - 1
    assert tree(tmp_path) == {FINAL: bodies[winners[0]]}


@pytest.mark.run_scenario(21)
@pytest.mark.parametrize(
    "attempt_id", ["", "a/b", "..", "../x", ".a", "a" * 37, "a\n", "\u00e9", "a\0b"]
)
def test_what_is_no_attempt_id_is_refused_before_any_file_is_touched(
    tmp_path: Path, attempt_id: str
) -> None:
    store = CompletionReceipts(str(tmp_path / "missing"), system_entropy)
    calls: list[Callable[[str], object]] = [
        store.reserve, store.read, store.remove, store.reference, store.quarantine, store.purge,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(UsageError):
            call(attempt_id)
    assert os.listdir(tmp_path) == []


def test_too_many_bytes_are_refused_and_the_room_is_given_back(tmp_path: Path, level: str) -> None:
    reserve = receipts(tmp_path).reserve(ATTEMPT)
    with pytest.raises(UsageError):
        reserve.publish(b"x" * 4_097)
    assert reserve.publish(b"x" * 4_096) is Published.NEW


@pytest.mark.run_scenario(25, 26, 150)
@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "fsync", "link"])
@pytest.mark.parametrize("code", WORDS)
def test_a_failing_step_leaves_no_name_and_nothing_beside_it(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    reserve = receipts(tmp_path).reserve(ATTEMPT)
    fail(monkeypatch, call, code)
    with pytest.raises(UnavailableError) as caught:
        reserve.publish(BODY)
    assert caught.value.code == WORDS[code]
    assert tree(tmp_path) == {}


def test_a_name_that_was_not_synced_is_whole_and_the_repeat_syncs_it(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = receipts(tmp_path).reserve(ATTEMPT)
    with monkeypatch.context() as patch:
        fail(patch, "fsync", errno.EIO, when=lambda file: stat.S_ISDIR(os.fstat(file).st_mode))
        with pytest.raises(UnavailableError):
            reserve.publish(BODY)
    assert tree(tmp_path) == {FINAL: BODY}
    assert receipts(tmp_path).reserve(ATTEMPT).publish(BODY) is Published.SAME


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV])
def test_a_file_system_without_links_is_refused_not_worked_around(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    reserve = receipts(tmp_path).reserve(ATTEMPT)
    fail(monkeypatch, "link", code)
    with pytest.raises(RefusedError) as caught:
        reserve.publish(BODY)
    assert caught.value.code == "filesystem_without_links"
    assert tree(tmp_path) == {}


def test_a_file_system_without_private_modes_is_refused_before_anything_starts(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fchmod
    monkeypatch.setattr(os, "fchmod", lambda file, _mode: real(file, 0o755))
    with pytest.raises(RefusedError) as caught:
        receipts(tmp_path).reserve(ATTEMPT)
    assert caught.value.code == "filesystem_without_modes"
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_where_there_is_no_room_nothing_is_reserved(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fail(monkeypatch, "posix_fallocate", code)
    with pytest.raises(UnavailableError) as caught:
        receipts(tmp_path).reserve(ATTEMPT)
    assert caught.value.code == "disk_full"
    assert tree(tmp_path) == {}


def test_where_nothing_allocates_the_room_is_written(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "posix_fallocate", errno.EOPNOTSUPP)
    reserve = receipts(tmp_path).reserve(ATTEMPT)
    assert os.fstat(reserve._file).st_size == 4_096
    assert reserve.publish(BODY) is Published.NEW
    assert tree(tmp_path) == {FINAL: BODY}


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT])
def test_a_kernel_without_unnamed_files_leads_to_level_b(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fail(monkeypatch, "open", code, when=lambda path, *_a: path == ".")
    reserve = receipts(tmp_path).reserve(ATTEMPT)
    (temporary,) = os.listdir(shard(tmp_path))
    assert temporary == reserve.temporary
    assert temporary.startswith(f".{ATTEMPT}.")
    assert temporary.endswith(".tmp")
    assert len(temporary) == len(ATTEMPT) + 2 + 32 + 4
    reserve.close()


def test_a_missing_proc_leads_to_level_b(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_handle", lambda file: f"/nowhere/{file}")
    reserve = receipts(tmp_path).reserve(ATTEMPT)
    assert reserve.temporary is not None
    assert reserve.publish(BODY) is Published.NEW


def test_another_error_is_no_reason_for_level_b(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "open", errno.EMFILE, when=lambda path, *_a: path == ".")
    with pytest.raises(UnavailableError):
        receipts(tmp_path).reserve(ATTEMPT)


def plant_file(place: Path, _else: Path) -> None:
    place.write_text("")


def plant_link(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere)


def plant_wide(place: Path, _else: Path) -> None:
    place.mkdir(mode=0o750)


def plant_foreign(place: Path, _else: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give directories away")
    place.mkdir(mode=0o700)
    os.chown(place, 65_534, 65_534)


@pytest.mark.run_scenario(27, 34, 147)
@pytest.mark.parametrize("where", ["receipts", os.path.dirname(FINAL)])
@pytest.mark.parametrize("plant", [plant_file, plant_link, plant_wide, plant_foreign])
def test_a_directory_that_is_not_private_is_never_entered(
    tmp_path: Path, where: str, plant: Callable[[Path, Path], None]
) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    (state / where).parent.mkdir(mode=0o700, parents=True)
    (state / where).parent.chmod(0o700)
    (elsewhere / ATTEMPT[:2]).mkdir(mode=0o700, parents=True)
    plant(state / where, elsewhere)
    store = receipts(state)
    for call in (store.reserve, store.read, store.remove, store.reference, store.quarantine):
        with pytest.raises(DamagedError) as caught:
            call(ATTEMPT)
        assert caught.value.code == "receipts_damaged"
    assert tree(elsewhere) == {}


def test_a_state_that_is_gone_is_unavailable_never_an_absence(tmp_path: Path) -> None:
    store = receipts(tmp_path / "gone")
    for call in (store.reserve, store.read, store.remove, store.quarantine, store.purge):
        with pytest.raises(UnavailableError):
            call(ATTEMPT)


def test_a_directory_that_vanishes_while_it_is_made_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "open", errno.ENOENT, when=lambda path, *_a: path == ATTEMPT[:2])
    with pytest.raises(UnavailableError):
        receipts(tmp_path).reserve(ATTEMPT)
    assert receipts(tmp_path).read(ATTEMPT) is None


def test_the_points_of_a_publication_are_passed_around_its_link(tmp_path: Path, level: str) -> None:
    seen: list[tuple[Moment, Step, bool]] = []

    def note(point: CrashPoint, /) -> None:
        seen.append((*point, (tmp_path / FINAL).exists()))

    CompletionReceipts(str(tmp_path), system_entropy, note).reserve(ATTEMPT).publish(BODY)
    assert seen == [
        (Moment.BEFORE, Step.PUBLISH, False),
        (Moment.INSIDE, Step.PUBLISH, True),
        (Moment.AFTER, Step.PUBLISH, True),
    ]


def test_descriptors_are_closed_however_a_call_ends(tmp_path: Path) -> None:
    store = receipts(tmp_path)
    put(tmp_path)
    before = sorted(os.listdir("/proc/self/fd"))
    store.reserve(ATTEMPT).publish(ELSE)
    assert store.read(ATTEMPT) == RECEIPT
    assert store.read(OTHER) is None
    assert store.quarantine(ATTEMPT) is not None
    assert store.purge(ATTEMPT)
    shard(tmp_path).chmod(0o755)
    with pytest.raises(QinglongError):
        store.read(ATTEMPT)
    assert sorted(os.listdir("/proc/self/fd")) == before
