"""Kill the writers of receipts before each of their steps, and count what they flush.

A reader must find a whole receipt or none, and whoever comes next must be able to finish the work.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.executor.ambient import system_entropy
from qinglong_edge.ports.probe import CrashPoint, Moment, Step
from qinglong_edge.ports.receipts import Published
from qinglong_edge.receipts.audit import Bounds, audit
from qinglong_edge.receipts.keys import ReceiptKeys
from qinglong_edge.receipts.store import CompletionReceipts
from tests.crash.scenarios import PUBLISHED
from tests.support.clock import WALL_MS
from tests.support.crash import ENVIRONMENT
from tests.support.receipts import ATTEMPT, BODY, RECEIPT, put, receipts, shard, tree

STEPS = (
    "open", "close", "mkdir", "fchmod", "posix_fallocate", "pwrite", "ftruncate", "fsync", "link",
    "unlink", "rename",
)  # fmt: skip
STEPS_MAX = 100
TORN = BODY[:100]
FINAL = f"receipts/{ATTEMPT[:2]}/{ATTEMPT}.json"
KEPT = f"receipts/.quarantine/{ATTEMPT[:2]}/{ATTEMPT}.{sha256_hex(TORN)}.json"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(work: Callable[[], object]) -> bool:
    """Run some work in a real child; tell whether it was killed, and not merely ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:  # a fork must never return into its parent's tests
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, -signal.SIGKILL}
    return code != 0


def killed_before(nth: int, work: Callable[[], object]) -> bool:
    """Run some work in a child that dies before its n-th call of the system."""

    def armed() -> None:
        arm(nth)
        work()

    return killed(armed)


def arm(nth: int) -> None:
    left = [nth]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                die()
            return call(*args, **more)

        return step

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))


def each_death(root: Path, given: Callable[[Path], object], work: Callable[[Path], object]) -> Any:
    """Yield a state for each step of some work, in which it was begun and killed there."""
    for nth in range(1, STEPS_MAX):
        state = root / f"state-{nth}"
        state.mkdir(mode=0o700)
        given(state)
        if not killed_before(nth, lambda at=state: work(at)):  # type: ignore[misc]
            assert nth > 8, "the work has hardly a step"
            return
        yield state
    pytest.fail("the work never ends")


@pytest.fixture(params=["A", "B"])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "B":
        monkeypatch.setattr("qinglong_edge.receipts.publish._open_unnamed", lambda _at: -1)
    return str(request.param)


def nothing(_state: Path) -> None:
    """Leave the state as it is."""


def publish(state: Path) -> Published:
    return receipts(state).reserve(ATTEMPT).publish(BODY)


@pytest.mark.run_scenario(28, 43)
def test_a_killed_publication_leaves_a_whole_receipt_or_none(tmp_path: Path, level: str) -> None:
    found = []
    for state in each_death(tmp_path, nothing, publish):
        store = receipts(state)
        receipt = store.read(ATTEMPT)
        assert receipt in {None, RECEIPT}
        assert (state / FINAL).exists() == (receipt is not None)
        found.append(receipt is not None)
        assert publish(state) is (Published.NEW if receipt is None else Published.SAME)
        assert store.read(ATTEMPT) == RECEIPT
        left = [name for name in os.listdir(shard(state)) if name != f"{ATTEMPT}.json"]
        assert len(left) <= (level == "B")
        assert store.remove(ATTEMPT)
        assert tree(state) == {}
    assert found == sorted(found), "a receipt was there and was gone again"
    assert set(found) == {False, True}


@pytest.mark.run_scenario(28)
@pytest.mark.parametrize("moment", PUBLISHED)
def test_a_writer_killed_at_a_named_point_has_published_or_not(
    tmp_path: Path, level: str, moment: Moment
) -> None:
    def at(point: CrashPoint, /) -> None:
        if point == (moment, Step.PUBLISH):
            die()

    store = CompletionReceipts(str(tmp_path), system_entropy, at)
    assert killed(lambda: store.reserve(ATTEMPT).publish(BODY))
    assert receipts(tmp_path).read(ATTEMPT) == (RECEIPT if PUBLISHED[moment] else None)
    left = len(os.listdir(shard(tmp_path))) - PUBLISHED[moment]
    assert left == (level == "B" and moment is not Moment.AFTER)


def test_a_writer_that_writes_in_place_is_found_out(tmp_path: Path) -> None:
    def in_place(state: Path) -> None:
        for _ in range(8):
            os.close(os.open(shard(state), os.O_RDONLY))
        file = os.open(state / FINAL, os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(file, BODY, 0)
        os.fsync(file)

    seen = {receipts(state).read(ATTEMPT) for state in each_death(tmp_path, shard, in_place)}
    assert len(seen) == 3, "absent, partial, whole"


@pytest.mark.run_scenario(35)
def test_a_killed_quarantine_loses_nothing_and_is_finished_by_the_next(tmp_path: Path) -> None:
    states = each_death(
        tmp_path, lambda state: put(state, TORN), lambda state: receipts(state).quarantine(ATTEMPT)
    )
    for state in states:
        assert set(tree(state).values()) == {TORN}
        said = receipts(state).reference(ATTEMPT)
        assert receipts(state).quarantine(ATTEMPT) == said
        assert tree(state) == {KEPT: TORN}


@pytest.mark.run_scenario(42)
def test_a_killed_removal_is_finished_by_the_next(tmp_path: Path) -> None:
    def published_badly(state: Path) -> None:
        os.link(put(state), shard(state) / f".{ATTEMPT}.{'0' * 32}.tmp")

    states = each_death(tmp_path, published_badly, lambda state: receipts(state).remove(ATTEMPT))
    for state in states:
        assert receipts(state).read(ATTEMPT) in {None, RECEIPT}
        receipts(state).remove(ATTEMPT)
        assert tree(state) == {}


def test_a_killed_maker_of_keys_leaves_a_whole_key_or_none(tmp_path: Path, level: str) -> None:
    def create(state: Path) -> bytes:
        return ReceiptKeys(str(state), system_entropy).create().secret

    for state in each_death(tmp_path, nothing, create):
        path = state / "keys" / "hmac-1"
        before = path.read_bytes() if path.exists() else None
        secret = create(state)
        assert len(secret) == 32
        assert before in {None, secret}


@pytest.mark.run_scenario(58)
def test_a_killed_audit_loses_nothing_and_is_finished_by_the_next(tmp_path: Path) -> None:
    def move(state: Path) -> dict[Any, int]:
        bounds = Bounds(minimum_age_ms=0)
        report = audit(str(state), bounds, lambda _: {}, now_ms=2 * WALL_MS, quarantine=True)
        return dict(report.actions)

    for state in each_death(tmp_path, lambda state: put(state, TORN), move):
        assert set(tree(state).values()) == {TORN}
        move(state)
        ((name, data),) = tree(state).items()
        assert data == TORN
        assert name.startswith("receipts/.orphan-quarantine/")


# What it costs.

STRACE = shutil.which("strace")
TRACED = "fsync,fdatasync,sync,syncfs,link,linkat,mkdir,mkdirat,ftruncate,fallocate,unlink,unlinkat"
PUBLISHER = f"""
import sys
from tests.support.receipts import BODY, Path, receipts
from qinglong_edge.receipts import publish
if sys.argv[2] == "B":
    publish._open_unnamed = lambda at: -1
store = receipts(Path(sys.argv[1]))
for nth in range(3):
    assert store.reserve(f"{ATTEMPT[:2]}-{{nth}}").publish(BODY).value == "new"
"""


def strace_works() -> bool:
    if STRACE is None:
        return False
    return subprocess.run([STRACE, "-o", os.devnull, "true"], check=False).returncode == 0


@pytest.mark.skipif(not strace_works(), reason="strace is missing or may not trace here")
def test_a_publication_flushes_its_file_and_its_directory_around_the_link(
    tmp_path: Path, level: str
) -> None:
    state, log = tmp_path / "state", tmp_path / "log"
    state.mkdir()
    subprocess.run(
        [str(STRACE), "-f", "-y", "-e", f"trace={TRACED}", "-o", log,
         sys.executable, "-P", "-B", "-c", PUBLISHER, state, level],
        env=ENVIRONMENT, check=True,
    )  # fmt: skip
    lines = [line for line in log.read_text().splitlines() if str(state) in line]
    calls = [re.sub(r"^\d+ +(\w+?)(at)?\(.*", r"\1", line) for line in lines]
    made = ["mkdir", "fsync", "mkdir", "fsync"]
    once = ["fallocate", "ftruncate", "fsync", "link", *(["unlink"] * (level == "B")), "fsync"]
    assert calls[: len(made)] == made
    rest = [call for call in calls[len(made) :] if call != "mkdir"]  # which find it there
    assert rest == once * 3
    syncs = [line for line in lines if "fsync" in line]
    assert [line.rstrip().endswith(f"{ATTEMPT[:2]}>) = 0") for line in syncs[2:]] == [
        False,
        True,
    ] * 3
