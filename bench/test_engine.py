"""Measure the engine beside a floor in the same run; times mean nothing elsewhere, ratios do.

`make bench` prints the table. The write path uses a real file with `synchronous=FULL` in WAL, as a
state has it; the floor makes the same number of commits with one narrow row and no rules.
"""

import os
import sqlite3
import subprocess
import sys
from itertools import count
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from qinglong_edge.domain.action import Plan, action_digest

ROOT = Path(__file__).resolve().parents[1]
PLAN = Plan("shell.exec", "default", {"argv": ["/bin/echo", "hi"], "timeout_ms": 1000}, ())


def test_digest_of_a_plan(benchmark: BenchmarkFixture) -> None:
    """Canonical bytes and SHA-256 of a small plan."""
    assert len(benchmark(action_digest, PLAN)) == len("0" * 64)


def test_floor_one_commit(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """One narrow row, one commit: what the machine asks for durability itself."""
    connection = sqlite3.connect(tmp_path / "floor.db", isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE jobs (key INTEGER PRIMARY KEY, state TEXT NOT NULL) STRICT")
    numbers = count(1)

    def commit() -> None:
        connection.execute("INSERT INTO jobs VALUES (?, 'queued')", [next(numbers)])

    benchmark(commit)
    connection.close()


def test_floor_start_of_the_interpreter(benchmark: BenchmarkFixture) -> None:
    """A bare interpreter with the modules that any such program needs."""
    command = [sys.executable, "-I", "-S", "-c", "import sqlite3, json, argparse"]
    benchmark.pedantic(subprocess.run, (command,), {"check": True}, rounds=20)  # type: ignore[no-untyped-call]


def test_start_of_a_command_that_finds_nothing_to_do(
    benchmark: BenchmarkFixture, tmp_path: Path
) -> None:
    """An idle `cycle` in its own process, from the checkout."""
    password = tmp_path / "password"
    password.write_text("correct horse battery\n")
    password.chmod(0o600)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-S", "-m", "qinglong_edge", "--state", str(tmp_path / "state")]
    words = ["init", "--owner", "ana", "--password-file", str(password), "--volatile"]
    quiet = {"check": True, "env": environment, "stdout": subprocess.DEVNULL}
    subprocess.run([*program, *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    benchmark.pedantic(subprocess.run, ([*program, "cycle"],), quiet, rounds=20)  # type: ignore[no-untyped-call]
