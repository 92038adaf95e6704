"""What a look costs, counted at the system calls; and looks at what cannot be written."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.storage.sqlite import database
from tests.unit.storage.sqlite.stores import left, made, with_hot_journal, with_log

ROOT = Path(__file__).resolve().parents[4]
WRITING = (
    "write,writev,pwrite64,pwritev,ftruncate,truncate,fallocate,unlink,unlinkat,rename,renameat,"
    "renameat2,link,linkat,mkdir,mkdirat,chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,fsync,"
    "fdatasync,sync_file_range,utimensat,mmap"
)
CALL = re.compile(r"^(?:\d+ +)?(\w+)\(")

LOOK = """
import os, sys
from qinglong_edge.domain.errors import QinglongError
from qinglong_edge.storage.sqlite import database
try:
    connection, kind = database.look(sys.argv[1])
except QinglongError as error:
    print(error.code)
else:
    print(kind.value, connection.execute("SELECT x FROM t").fetchone()[0], flush=True)
    if sys.argv[2] == "close":
        connection.close()
    os._exit(0)
"""

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can mount"
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "state").mkdir(mode=0o700)
    return str(tmp_path / "state" / database.DATABASE)


def run(*command: str | Path) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def traced(path: str, end: str) -> tuple[str, Counter[str]]:
    """Look in another process; return what it said and its writing calls on the state directory."""
    directory = os.path.dirname(path)
    trace = Path(directory).parent / "trace"
    python = os.path.realpath(sys.executable)
    strace = ("strace", "-f", "-y", "-e", f"trace={WRITING},open,openat,creat", "-o", trace)
    said = run(*strace, python, "-S", "-c", LOOK, path, end)
    lines = [line for line in trace.read_text().splitlines() if directory in line]
    calls = Counter(found[1] for line in lines if (found := CALL.match(line)))
    for name in ("open", "openat", "creat"):
        calls.pop(name, None)
    calls["made"] = sum("O_CREAT" in line and "-wal" not in line for line in lines)
    return said, +calls


@pytest.mark.adr("0004", "2")
@needs_strace
@pytest.mark.parametrize("journal", ["wal", "truncate"])
@pytest.mark.parametrize("end", ["close", "leave"])
def test_a_look_at_a_closed_store_writes_nothing(
    path: str, journal: database.Journal, end: str
) -> None:
    assert traced(made(path, journal), end) == ("immutable 1", Counter())


@pytest.mark.adr("0004", "2")
@needs_strace
def test_a_look_at_a_truncated_journal_writes_nothing(path: str) -> None:
    left(made(path, "truncate"), "truncate", "UPDATE t SET x = 2")
    assert os.path.exists(f"{path}-journal")
    assert traced(path, "leave") == ("immutable 2", Counter())


@needs_strace
def test_a_look_at_a_log_writes_no_data_and_root_only_owns_the_file_again(path: str) -> None:
    as_root = Counter({"fchown": 1}) if os.geteuid() == 0 else Counter()
    for _ in range(2):
        assert traced(with_log(path) if not os.path.exists(path) else path, "leave") == (
            "recovered 2",
            as_root,
        )


@pytest.mark.adr("0004", "2")
@needs_strace
def test_closing_folds_the_log_in_and_the_next_look_writes_nothing(path: str) -> None:
    said, calls = traced(with_log(path), "close")
    calls.pop("fchown", None)
    assert said == "recovered 2"
    assert set(calls) <= {"pwrite64", "ftruncate", "fsync", "fdatasync", "unlink"}
    flushed = calls["fsync"] + calls["fdatasync"]
    assert (flushed, calls["unlink"]) == (3, 1)  # the log, its directory, the database
    assert traced(path, "close") == ("immutable 2", Counter())


MOUNTED = """
set -e
mount -o bind "$1" "$1"
mount -o remount,bind,ro "$1"
shift
exec "$@"
"""


def read_only(path: str) -> str:
    """Look in another process where the state is mounted for reading only."""
    shell = ("unshare", "-m", "sh", "-c", MOUNTED, "sh", os.path.dirname(path))
    return run(*shell, sys.executable, "-c", LOOK, path, "close")


@needs_root
@pytest.mark.parametrize(
    ("leave", "said"),
    [
        (lambda path: made(path, "wal"), "immutable 1"),
        (lambda path: made(path, "truncate"), "immutable 1"),
        (with_log, "frozen 2"),
        (with_hot_journal, "read_only_unrecovered"),
    ],
)
def test_a_read_only_store_is_read_as_it_is(
    path: str, leave: Callable[[str], str], said: str
) -> None:
    leave(path)
    directory = Path(path).parent
    before = {each.name: each.read_bytes() for each in directory.iterdir()}
    assert read_only(path) == said
    assert {each.name: each.read_bytes() for each in directory.iterdir()} == before


@needs_root
def test_a_log_that_is_no_file_is_damage_there_as_well(path: str) -> None:
    log = Path(f"{with_log(path)}-wal")
    log.unlink()
    log.mkdir()
    assert read_only(path) == "store_damaged"
