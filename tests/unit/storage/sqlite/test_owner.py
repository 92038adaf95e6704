"""Who may open a state, and that only one process does: with real processes and real users."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_edge.domain.errors import QinglongError, RefusedError, UnavailableError
from qinglong_edge.domain.tick import Reading
from qinglong_edge.storage.sqlite.custody import become_owner
from qinglong_edge.storage.sqlite.owner import OwnerLock

ROOT = Path(__file__).resolve().parents[4]
NOBODY = 65534
NAMELESS = 54321  # a user that no list knows

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Steady:
    """Read the monotonic clock of the machine."""

    def read(self) -> Reading:
        raise NotImplementedError

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


CLOCKS = Steady()

HOLD = """
import os, signal, sys, time
from qinglong_edge.storage.sqlite.owner import OwnerLock
class Clocks:
    def monotonic_ms(self): return time.monotonic_ns() // 1_000_000
with OwnerLock.acquire(sys.argv[1], clocks=Clocks()):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


def started(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def holder(state: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that owns the state."""
    with started(HOLD, state) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def refusal(state: Path, *, wait_ms: int = 0) -> QinglongError:
    with pytest.raises(QinglongError) as caught:
        OwnerLock.acquire(str(state), wait_ms=wait_ms, clocks=CLOCKS)
    return caught.value


def test_the_lock_file_is_made_once_private_and_stays_empty(state: Path) -> None:
    before = os.umask(0o777)
    try:
        OwnerLock.acquire(str(state), clocks=CLOCKS).release()
    finally:
        os.umask(before)
    first = (state / "lock").stat()
    with OwnerLock.acquire(str(state), clocks=CLOCKS):
        again = (state / "lock").stat()
    assert (first.st_mode & 0o777, first.st_size) == (0o600, 0)
    assert (again.st_ino, again.st_mtime_ns, again.st_ctime_ns) == (
        first.st_ino,
        first.st_mtime_ns,
        first.st_ctime_ns,
    )


def test_a_second_owner_in_this_process_is_refused_until_the_first_lets_go(state: Path) -> None:
    lock = OwnerLock.acquire(str(state), clocks=CLOCKS)
    assert refusal(state).code == "state_busy"
    lock.release()
    lock.release()
    OwnerLock.acquire(str(state), wait_ms=0, clocks=CLOCKS).release()


@pytest.mark.adr("0004", "1")
def test_another_process_is_waited_for_as_long_as_asked(
    state: Path, holder: subprocess.Popen[str]
) -> None:
    begun_ms = CLOCKS.monotonic_ms()
    busy = refusal(state, wait_ms=150)
    waited_ms = CLOCKS.monotonic_ms() - begun_ms
    assert isinstance(busy, UnavailableError)
    assert (busy.code, busy.details, busy.retryable) == ("state_busy", {"waited_ms": 150}, True)
    assert 150 <= waited_ms < 2_000


@pytest.mark.adr("0004", "1")
def test_a_killed_owner_frees_the_state_at_once(state: Path, holder: subprocess.Popen[str]) -> None:
    assert refusal(state).code == "state_busy"
    holder.send_signal(signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    OwnerLock.acquire(str(state), wait_ms=0, clocks=CLOCKS).release()


def test_a_waiting_process_gets_the_lock_when_it_is_released(
    state: Path, holder: subprocess.Popen[str]
) -> None:
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    with OwnerLock.acquire(str(state), clocks=CLOCKS):
        assert holder.wait() == 0


def test_a_release_counts_although_a_child_has_the_descriptor(state: Path) -> None:
    lock = OwnerLock.acquire(str(state), clocks=CLOCKS)
    copy = os.dup(lock.descriptor)
    lock.release()
    OwnerLock.acquire(str(state), wait_ms=0, clocks=CLOCKS).release()
    os.close(copy)


def test_the_lock_does_not_outlive_its_owner_in_a_program_it_started(state: Path) -> None:
    with OwnerLock.acquire(str(state), clocks=CLOCKS) as lock:
        assert not os.get_inheritable(lock.descriptor)


def test_a_removed_file_is_made_again(state: Path) -> None:
    OwnerLock.acquire(str(state), clocks=CLOCKS).release()
    (state / "lock").unlink()
    OwnerLock.acquire(str(state), clocks=CLOCKS).release()
    assert (state / "lock").exists()


def test_content_of_a_dead_listener_is_left_alone(state: Path) -> None:
    (state / "lock").write_text('{"pid":1}')
    OwnerLock.acquire(str(state), clocks=CLOCKS).release()
    assert (state / "lock").read_text() == '{"pid":1}'


def test_a_planted_file_is_refused(state: Path, tmp_path: Path) -> None:
    lock = state / "lock"
    lock.symlink_to(tmp_path / "elsewhere")
    assert refusal(state).code == "state_insecure"
    assert not (tmp_path / "elsewhere").exists()
    lock.unlink()
    os.mkfifo(lock)
    assert refusal(state).code == "state_insecure"
    lock.unlink()
    lock.mkdir()
    assert refusal(state).code == "state_insecure"


def test_without_a_state_directory_there_is_nothing_to_own(state: Path) -> None:
    (state / "file").touch()
    for path in (state / "none", state / "file"):
        error = refusal(path)
        assert (type(error), error.code) == (RefusedError, "not_initialised")


def custody_refusal(path: Path | str) -> str:
    with pytest.raises(RefusedError) as refused:
        become_owner(str(path))
    return refused.value.code


def test_the_owner_stays_who_it_is(state: Path) -> None:
    assert become_owner(str(state)) == (os.geteuid(), os.getegid())
    assert become_owner(f"{state}//") == (os.geteuid(), os.getegid())


def test_a_state_must_be_a_private_directory_itself(state: Path, tmp_path: Path) -> None:
    assert custody_refusal(tmp_path / "none") == "not_initialised"
    (tmp_path / "file").touch()
    assert custody_refusal(tmp_path / "file") == "state_insecure"
    (tmp_path / "link").symlink_to(state)
    assert custody_refusal(tmp_path / "link") == "state_insecure"
    assert custody_refusal(f"{tmp_path / 'link'}/") == "state_insecure"


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o704, 0o720, 0o777])
def test_a_state_open_to_others_is_refused(state: Path, mode: int) -> None:
    state.chmod(mode)
    assert custody_refusal(state) == "state_insecure"


BECOME = """
import os, sys, time
from qinglong_edge.domain.errors import QinglongError
from qinglong_edge.storage.sqlite.custody import become_owner
from qinglong_edge.storage.sqlite.owner import OwnerLock
class Clocks:
    def monotonic_ms(self): return time.monotonic_ns() // 1_000_000
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
try:
    become_owner(sys.argv[1])
    OwnerLock.acquire(sys.argv[1], clocks=Clocks()).release()
except QinglongError as error:
    print(error.code)
else:
    print(*os.getresuid(), *os.getresgid(), *os.getgroups())
"""


def becoming(state: Path, *uid: str) -> list[str]:
    with started(BECOME, state, *uid) as process:
        return process.communicate()[0].split()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """Make a directory that every user can reach, with a state in it."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    (path / "state").mkdir(mode=0o700)
    yield path / "state"
    shutil.rmtree(path)


@pytest.mark.adr("0004", "6")
@needs_root
@pytest.mark.parametrize(
    ("uid", "gid", "group"),
    [(NOBODY, NOBODY, NOBODY), (NAMELESS, 12345, 12345), (NAMELESS, 0, NAMELESS)],
)
def test_root_becomes_the_owner_for_good(reachable: Path, uid: int, gid: int, group: int) -> None:
    os.chown(reachable, uid, gid)
    words = [int(word) for word in becoming(reachable)]
    assert words[:6] == [uid] * 3 + [group] * 3
    assert 0 not in words
    lock = (reachable / "lock").stat()
    assert (lock.st_uid, lock.st_mode & 0o777) == (uid, 0o600)


@pytest.mark.adr("0004", "6")
@needs_root
def test_any_other_user_is_refused(reachable: Path) -> None:
    assert becoming(reachable, str(NOBODY)) == ["state_not_owned"]
    os.chown(reachable, NAMELESS, NAMELESS)
    assert becoming(reachable, str(NOBODY)) == ["state_not_owned"]
    assert list(reachable.iterdir()) == []


@needs_root
def test_root_does_not_open_what_its_owner_cannot_reach(reachable: Path) -> None:
    os.chown(reachable, NOBODY, NOBODY)
    reachable.parent.chmod(0o700)
    assert becoming(reachable) == ["state_unreachable"]


@needs_root
def test_an_insecure_state_of_another_user_is_refused_before_root_becomes_it(
    reachable: Path,
) -> None:
    os.chown(reachable, NOBODY, NOBODY)
    reachable.chmod(0o755)
    assert custody_refusal(reachable) == "state_insecure"
    assert os.geteuid() == 0
