"""The audit names what everything is, reads nothing, and moves only what nobody owns."""

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.domain.errors import DamagedError, UnavailableError, UsageError
from qinglong_edge.receipts.audit import Action, Bounds, Category, Owner, Report, audit
from tests.support.clock import WALL_MS
from tests.support.receipts import ATTEMPT, shard, tree

SHARD = ATTEMPT[:2]
NOW_MS = WALL_MS
OLD_MS = NOW_MS - 300_000
TEMPORARY = "0" * 32 + ".tmp"
OWNERS = {
    "01-journaled": Owner.JOURNALED,
    "01-active": Owner.ACTIVE,
    "01-terminal": Owner.TERMINAL,
    "01-young": Owner.TERMINAL,
}


def owners(asked: Sequence[str]) -> Mapping[str, Owner]:
    assert 1 <= len(asked) <= 32
    return {name: OWNERS[name] for name in asked if name in OWNERS}


def plant(state: Path, name: str, at_ms: int = OLD_MS) -> Path:
    path = shard(state) / name
    path.write_bytes(os.fsencode(name))
    path.chmod(0o600)
    os.utime(path, ns=(0, at_ms * 1_000_000))
    return path


def run(state: Path, **changes: Any) -> Report:
    move = changes.pop("quarantine", False)
    return audit(str(state), Bounds(**changes), owners, now_ms=NOW_MS, quarantine=move)


ENTRIES: dict[str, tuple[int, Category]] = {
    "01-journaled.json": (OLD_MS, Category.JOURNALED),
    f".01-journaled.{TEMPORARY}": (OLD_MS, Category.JOURNALED),
    "01-active.json": (OLD_MS, Category.ACTIVE_ATTEMPT),
    f".01-active.{TEMPORARY}": (OLD_MS, Category.ACTIVE_ATTEMPT),
    "01-young.json": (OLD_MS + 1, Category.YOUNG_TERMINAL_ATTEMPT),
    "01-terminal.json": (OLD_MS, Category.TERMINAL_ORPHAN),
    "01-nobody.json": (OLD_MS, Category.UNKNOWN_RECEIPT),
    "01-new.json": (OLD_MS + 1, Category.YOUNG_UNKNOWN_RECEIPT),
    f".01-terminal.{TEMPORARY}": (OLD_MS, Category.STALE_TEMPORARY),
    f".01-x.{TEMPORARY}": (OLD_MS + 1, Category.YOUNG_TEMPORARY),
    f".01-y.{TEMPORARY[1:]}": (OLD_MS, Category.UNKNOWN_ENTRY),
    "02-active.json": (OLD_MS, Category.UNKNOWN_ENTRY),  # in the directory of others
    "note": (NOW_MS + 1_000_000, Category.YOUNG_UNKNOWN_ENTRY),
    "\udcff.json": (OLD_MS, Category.UNKNOWN_ENTRY),
}
UNSAFE = ("link.json", "01-dir.json", "01-fifo.json")
ELIGIBLE = {
    name for name, (_, category) in ENTRIES.items()
    if category in {"terminal_orphan", "unknown_receipt", "stale_temporary", "unknown_entry"}
}  # fmt: skip


@pytest.fixture
def fixture(tmp_path: Path) -> Path:
    for name, (at_ms, _) in ENTRIES.items():
        plant(tmp_path, name, at_ms)
    place = shard(tmp_path)
    (place / "link.json").symlink_to("note")
    (place / "01-dir.json").mkdir()
    os.mkfifo(place / "01-fifo.json")
    return tmp_path


def by_category(report: Report) -> dict[Category, list[Action]]:
    found: dict[Category, list[Action]] = {}
    for entry in report.entries:
        found.setdefault(entry.category, []).append(entry.action)
    return found


@pytest.mark.run_scenario(57)
def test_every_entry_has_its_category_and_nothing_is_read_or_moved(
    fixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(fixture)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *_a: pytest.fail("a content was read"))
        report = run(fixture)
    wanted = [category for _, category in ENTRIES.values()] + [Category.UNSAFE_ENTRY] * len(UNSAFE)
    assert report.categories == {each: wanted.count(each) for each in wanted}
    assert set(report.categories) == set(Category)
    assert report.actions == {
        Action.ELIGIBLE: len(ELIGIBLE),
        Action.RETAINED: len(wanted) - len(ELIGIBLE),
    }
    assert (report.schema_version, report.overflows) == (1, ())
    named = {entry.attempt_id for entry in report.entries if entry.category == "active_attempt"}
    assert named == {"01-active"}
    assert tree(fixture) == before
    assert os.listdir(fixture) == ["receipts"]
    assert os.listdir(fixture / "receipts") == [SHARD]


@pytest.mark.run_scenario(58)
def test_what_nobody_owns_is_moved_when_that_is_asked_for(fixture: Path) -> None:
    report = run(fixture, quarantine=True)
    kept = fixture / "receipts" / ".orphan-quarantine" / SHARD
    moved = {f"{e.digest}.entry" for e in report.entries if e.action is Action.QUARANTINED}
    assert set(os.listdir(kept)) == moved
    assert {path.read_bytes() for path in kept.iterdir()} == {
        os.fsencode(name) for name in ELIGIBLE
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept.iterdir()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (kept, kept.parent)} == {0o700}
    assert set(os.listdir(shard(fixture))) == {*ENTRIES, *UNSAFE} - ELIGIBLE
    again = run(fixture, quarantine=True)
    assert set(again.actions) == {Action.RETAINED}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else_is_unsafe(tmp_path: Path) -> None:
    os.chown(plant(tmp_path, "01-nobody.json"), 65_534, 65_534)
    report = run(tmp_path, quarantine=True)
    assert by_category(report) == {Category.UNSAFE_ENTRY: [Action.RETAINED]}


@pytest.mark.run_scenario(59)
@pytest.mark.parametrize("extra", [0, 1])
def test_a_directory_over_the_bound_is_reported_and_nothing_there_moves(
    tmp_path: Path, extra: int
) -> None:
    for nth in range(4 + extra):
        plant(tmp_path, f"01-{nth}.json")
    report = run(tmp_path, quarantine=True, entries=4)
    action = Action.BLOCKED_OVERFLOW if extra else Action.QUARANTINED
    assert report.actions == {action: 4}
    assert report.overflows == ((SHARD,) if extra else ())
    assert len(os.listdir(shard(tmp_path))) == (5 if extra else 0)


def test_an_overflow_holds_up_no_other_directory(tmp_path: Path) -> None:
    for nth in range(3):
        plant(tmp_path, f"01-{nth}.json")
    shutil.copytree(shard(tmp_path), tmp_path / "receipts" / "02")
    (tmp_path / "receipts" / "02" / "01-0.json").unlink()
    report = run(tmp_path, quarantine=True, entries=2, minimum_age_ms=0)
    assert report.actions == {Action.BLOCKED_OVERFLOW: 2, Action.QUARANTINED: 2}


@pytest.mark.run_scenario(60)
@pytest.mark.parametrize("moment", ["before", "at_link", "gone", "grown"])
def test_an_entry_that_changes_after_it_was_listed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    path = plant(tmp_path, "01-nobody.json")
    call = "link" if moment == "at_link" else "mkdir"
    real = getattr(os, call)

    def changed(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        if moment == "grown":
            path.write_bytes(b"something longer")
        else:
            path.unlink()
        if moment in {"before", "at_link"}:
            path.write_bytes(b"newer")
        return real(*args, **more)

    monkeypatch.setattr(os, call, changed)
    report = run(tmp_path, quarantine=True)
    assert by_category(report) == {Category.UNKNOWN_RECEIPT: [Action.CHANGED]}
    kept = tmp_path / "receipts" / ".orphan-quarantine"
    assert tree(kept) == {}
    assert path.exists() == (moment != "gone")


def test_what_has_the_name_in_the_quarantine_is_not_replaced(tmp_path: Path) -> None:
    path = plant(tmp_path, "01-nobody.json")
    (entry,) = run(tmp_path).entries
    kept = tmp_path / "receipts" / ".orphan-quarantine" / SHARD / f"{entry.digest}.entry"
    kept.parent.mkdir(parents=True, mode=0o700)
    kept.parent.parent.chmod(0o700)
    kept.write_bytes(b"evidence")
    assert run(tmp_path, quarantine=True).actions == {Action.CHANGED: 1}
    assert (kept.read_bytes(), path.exists()) == (b"evidence", True)


def test_a_move_that_ended_halfway_is_finished_by_the_next(tmp_path: Path) -> None:
    path = plant(tmp_path, "01-nobody.json")
    (entry,) = run(tmp_path).entries
    kept = tmp_path / "receipts" / ".orphan-quarantine" / SHARD / f"{entry.digest}.entry"
    kept.parent.mkdir(parents=True, mode=0o700)
    kept.parent.parent.chmod(0o700)
    os.link(path, kept)
    assert run(tmp_path, quarantine=True).actions == {Action.QUARANTINED: 1}
    assert not path.exists()


@pytest.mark.run_scenario(61)
@pytest.mark.parametrize("where", ["receipts", "receipts/01", "receipts/05"])
def test_a_directory_that_leads_elsewhere_ends_the_audit_before_anything_moves(
    tmp_path: Path, where: str
) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state.mkdir()
    elsewhere.mkdir()
    plant(elsewhere, "01-nobody.json")
    if where != "receipts":
        plant(state, "01-nobody.json")
    if where == "receipts/01":
        shutil.rmtree(state / where)
    (state / where).symlink_to(shard(elsewhere) if where != "receipts" else elsewhere / "receipts")
    before = (tree(state), tree(elsewhere))
    with pytest.raises(DamagedError):
        run(state, quarantine=True)
    assert (tree(state), tree(elsewhere)) == before


@pytest.mark.run_scenario(61)
def test_a_quarantine_that_leads_elsewhere_ends_the_audit_before_anything_moves(
    tmp_path: Path,
) -> None:
    plant(tmp_path, "01-nobody.json")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "receipts" / ".orphan-quarantine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedError):
        run(tmp_path, quarantine=True)
    assert os.listdir(tmp_path / "elsewhere") == []
    assert os.listdir(shard(tmp_path)) == ["01-nobody.json"]


@pytest.mark.run_scenario(61)
@pytest.mark.parametrize(
    "bounds",
    [
        {"shards": 0}, {"shards": 33}, {"entries": 0}, {"entries": 65}, {"start_shard": -1},
        {"start_shard": 256}, {"minimum_age_ms": -1}, {"shards": True},
    ],
    ids=str,
)  # fmt: skip
def test_bounds_over_the_limits_are_refused(tmp_path: Path, bounds: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        run(tmp_path, **bounds)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("start", "count", "following", "wrapped"),
    [(0, 8, 8, False), (224, 32, 0, True), (250, 8, 2, True), (223, 32, 255, False)],
)
def test_the_next_audit_goes_on_where_this_one_ended(
    tmp_path: Path, start: int, count: int, following: int, wrapped: bool
) -> None:
    report = run(tmp_path, start_shard=start, shards=count)
    assert (report.next_shard, report.wrapped) == (following, wrapped)


def test_a_round_of_audits_meets_every_directory_once(tmp_path: Path) -> None:
    for name in ("00", "01", "9f", "ff"):
        (tmp_path / "receipts" / name).mkdir(parents=True, mode=0o700)
        (tmp_path / "receipts" / name / "x").write_bytes(b"")
    (tmp_path / "receipts").chmod(0o700)
    start, met = 0, []
    for _ in range(8):
        report = run(tmp_path, start_shard=start, shards=32)
        met += [entry.shard for entry in report.entries]
        start = report.next_shard
    assert (met, start, report.wrapped) == (["00", "01", "9f", "ff"], 0, True)


def test_the_database_is_asked_in_chunks(tmp_path: Path) -> None:
    for nth in range(64):
        plant(tmp_path, f"01-{nth:02}.json")
    sizes = []

    def counting(asked: Sequence[str]) -> Mapping[str, Owner]:
        sizes.append(len(asked))
        return dict.fromkeys(asked, Owner.ACTIVE)

    report = audit(str(tmp_path), Bounds(entries=64), counting, now_ms=NOW_MS)
    assert (sizes, report.categories) == ([32, 32], {Category.ACTIVE_ATTEMPT: 64})


def test_a_database_that_does_not_answer_ends_the_audit(tmp_path: Path) -> None:
    def silent(_asked: Sequence[str]) -> Mapping[str, Owner]:
        raise UnavailableError("busy", "the database is busy")

    plant(tmp_path, "01-nobody.json")
    with pytest.raises(UnavailableError):
        audit(str(tmp_path), Bounds(), silent, now_ms=NOW_MS, quarantine=True)
    assert os.listdir(tmp_path / "receipts") == [SHARD]
