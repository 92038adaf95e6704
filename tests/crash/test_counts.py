"""Count what real processes write and flush: the numbers that wear flash out.

strace counts system calls on the files of the state directory; the store counts its own commits.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from qinglong_edge.cli.request import Streams, Surroundings
from qinglong_edge.cli.store import StateOwner
from qinglong_edge.commands import cycle
from qinglong_edge.commands.engine import Engine
from qinglong_edge.domain.lifecycle import Cursors
from qinglong_edge.executor.ambient import system_entropy
from qinglong_edge.ports.probe import CrashPoint, Moment
from tests.crash.scenarios import PROVEN, UNANSWERED, UNPROVEN
from tests.support.crash import BOT_FILE, CYCLE, ENVIRONMENT, Place, Workshop, plan, ready, settle
from tests.support.crash_driver import Shift, ShiftedClocks, by_person
from tests.support.store import NOBODY

STRACE = shutil.which("strace")
TRACED = (
    "write,pwrite64,writev,pwritev,pwritev2,ftruncate,fallocate,fsync,fdatasync,msync,unlink,"
    "unlinkat,rename,renameat,renameat2,link,linkat,mkdir,mkdirat,fchown,fchmod"
)
NOW = Shift()
AHEAD = Shift(wall_ms=240_000, boot_ms=240_000, monotonic_ms=240_000)  # still believed from NOW
FLUSHES = {"fsync", "fdatasync"}
_ON_FILE = re.compile(r"^\d+ +(\w+)\(\d+<([^>]*)>(.*)$")
_LENGTH = re.compile(r'""(?:\.\.\.)?, (\d+)')
_ON_NAME = re.compile(r'^\d+ +(\w+)\([^<]*"([^"]*)"')


def strace_works() -> bool:
    if STRACE is None:
        return False
    return subprocess.run([STRACE, "-o", os.devnull, "true"], check=False).returncode == 0


traced = pytest.mark.skipif(not strace_works(), reason="strace is missing or may not trace here")


class Trace(NamedTuple):
    """Hold what one process did to the files of a state."""

    code: int
    calls: list[tuple[str, str]]
    written: int

    @property
    def flushes(self) -> list[str]:
        return [path for call, path in self.calls if call in FLUSHES]


def command(place: Place, *words: str) -> Trace:
    """Run the real command line under strace; names outside the state do not count."""
    log = place.directory / "strace"
    python = [sys.executable, "-P", "-B", "-m", "qinglong_edge", "--state", str(place.state)]
    done = subprocess.run(
        [str(STRACE), "-f", "-y", "-s", "0", "-e", f"trace={TRACED}", "-o", log, *python, *words],
        cwd=place.directory, env=ENVIRONMENT, capture_output=True, check=False,
    )  # fmt: skip
    return trace_of(done.returncode, log.read_text(), place.state)


def trace_of(code: int, text: str, state: Path) -> Trace:
    calls, written = [], 0
    for line in text.splitlines():
        match = _ON_FILE.match(line) or _ON_NAME.match(line)
        if match is None or not match[2].startswith(f"{state}"):
            continue
        calls.append((match[1], match[2].removeprefix(f"{state}").lstrip("/")))
        if "write" in match[1]:
            size = _LENGTH.search(line)
            assert size is not None, line
            written += int(size[1])
    return Trace(code, calls, written)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with closing(Workshop(tmp_path_factory.mktemp("counts"))) as made:
        yield made


@pytest.fixture
def folded(shop: Workshop) -> Place:
    """Return a state with one finished action, its log folded in."""
    place = shop.home(*ready("good"), CYCLE)
    assert place.live(CYCLE).exits == [0]
    return place


def contents(place: Place) -> dict[str, tuple[int, bytes]]:
    found = sorted(path for path in place.state.rglob("*") if path.is_file())
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


@traced
@pytest.mark.scenario(221)
@pytest.mark.parametrize(
    "words",
    [
        ["cycle"],
        ["status"],
        ["verify"],
        ["action", "list"],
        ["action", "show", "apr-1"],
        ["action", "logs", "dsp-1"],
        ["recovery", "list"],
        ["user", "list"],
        ["handler", "list"],
    ],
    ids=" ".join,
)
def test_what_finds_nothing_to_do_writes_nothing(folded: Place, words: list[str]) -> None:
    before = contents(folded)
    assert command(folded, *words) == Trace(0, [], 0)
    assert contents(folded) == before


@traced
def test_an_idle_cycle_folds_a_log_in_once(shop: Workshop) -> None:
    place = shop.home(*ready("good"), CYCLE)
    assert (place.state / "state.db-wal").stat().st_size > 0
    first, second = command(place, "cycle"), command(place, "cycle")
    assert first.written > 0
    assert second == Trace(0, [], 0)


def own(place: Place, work: Callable[[Engine], object], clock: Shift = NOW) -> list[str]:
    """Own the state in this process; return the steps of `work`, each one commit of the store."""
    steps: list[str] = []

    def note(point: CrashPoint, /) -> None:
        if point.moment is Moment.AFTER:
            steps.append(point.step.value)

    streams = Streams(sys.stdin.buffer, sys.stdout, sys.stderr, False, False)
    around = Surroundings(streams, {}, ShiftedClocks(clock), system_entropy, note)
    with closing(StateOwner(str(place.state), around)) as owner:
        work(owner.write())
        assert owner.database is not None
        assert owner.database.commits == len(steps)
    return steps


def one_cycle(engine: Engine, *, whole: bool = True) -> None:
    cycle.Runner(engine, engine.registry, whole=whole).run(Cursors(), lambda: False)


PAGES = {
    "merged": (("good",) * 8, 9),
    "split": (("bad", *("good",) * 7), 10),
    "whole": (("publish",) * 8, 8),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_eight_costs_few_commits(
    shop: Workshop, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds, most = PAGES[page]
    place = shop.home(*ready(*kinds))
    monkeypatch.chdir(place.directory)  # where the actions leave their marks
    steps = own(place, one_cycle)
    assert len(steps) == most, steps
    assert sum(place.view().begun.values()) == kinds.count("good")


@traced
@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_eight_costs_few_flushes(shop: Workshop, page: str) -> None:
    kinds, most = PAGES[page]
    place = shop.home(*ready(*kinds))
    trace = command(place, "cycle")
    assert trace.code == (10 if page == "split" else 0)
    logged = trace.flushes.count("state.db-wal")
    # One a commit; the log's own header, and what the process before left in it, may take one.
    assert most <= logged <= most + 1, trace.flushes
    assert len(trace.flushes) <= most + 3, trace.flushes


def test_a_page_on_the_database_costs_two_commits_each_where_nothing_is_merged(
    shop: Workshop,
) -> None:
    """The barrier rides on the claim or on the verdict before it; the effect stands alone."""
    place = shop.home(*ready(*("publish",) * 8))
    steps = Counter(own(place, partial(one_cycle, whole=False)))
    assert steps == {"claim_start": 1, "effect": 8, "complete_start": 7, "complete": 1}


@pytest.mark.adr("0033", "5.4")
def test_one_look_for_evidence_costs_two_commits(shop: Workshop) -> None:
    place = shop.place(*UNPROVEN, {"calls": [CYCLE]})
    assert own(place, one_cycle, AHEAD) == ["claim_scan", "observe"]
    assert own(place, one_cycle, AHEAD) == []


@pytest.mark.adr("0033", "5.5")
def test_settling_by_evidence_costs_two_commits(shop: Workshop) -> None:
    place = shop.place(*PROVEN)
    steps = own(place, one_cycle)
    assert steps == ["settle_owners", "claim_scan", "resolve_evidence"]
    assert own(place, one_cycle, AHEAD) == []


@pytest.mark.adr("0033", "5.6")
def test_an_outcome_for_a_person_costs_two_commits_in_all(shop: Workshop) -> None:
    place = shop.place(*UNANSWERED)
    assert own(place, one_cycle) == ["settle_owners", "claim_scan", "observe"]
    assert own(place, one_cycle, AHEAD) == []


@pytest.mark.adr("0033", "7.1")
def test_a_person_settles_in_one_commit(shop: Workshop) -> None:
    place = shop.place(*UNANSWERED, {"calls": [CYCLE]})
    word = settle(1, 3).args
    assert own(place, lambda engine: by_person(engine, NOBODY, word)) == ["resolve_person"]
    assert own(place, lambda engine: by_person(engine, NOBODY, word)) == []


PARKED = {
    "for_a_person": ((*UNANSWERED, {"calls": [CYCLE]}), 0),
    "for_its_next_scan": ((*UNPROVEN, {"calls": [CYCLE]}, {"calls": [CYCLE], "clock": AHEAD}), 10),
}


@traced
@pytest.mark.scenario(221)
@pytest.mark.adr("0033", "5.10")
@pytest.mark.parametrize("parked", PARKED)
def test_a_cycle_beside_an_outcome_that_waits_writes_nothing(shop: Workshop, parked: str) -> None:
    given, code = PARKED[parked]
    place = shop.place(*given)
    assert place.live(CYCLE).exits == [code]  # folds the log in
    before = contents(place)
    for _ in range(2):
        assert command(place, "cycle") == Trace(code, [], 0)
    assert contents(place) == before


@traced
def test_a_look_for_evidence_flushes_what_it_commits(shop: Workshop) -> None:
    place = shop.place(*UNPROVEN)
    trace = command(place, "cycle")
    assert trace.code == 10
    logged = trace.flushes.count("state.db-wal")
    assert 3 <= logged <= 4, trace.flushes  # the dead owner, the claim, the finding; a log's header
    assert len(trace.flushes) <= 6, trace.flushes


@traced
def test_a_command_that_commits_once_flushes_three_times(shop: Workshop) -> None:
    place = shop.home()
    (place.directory / "plan").write_text(plan("good"))
    words = ("--token-file", BOT_FILE, "action", "propose", "plan")
    traces = [command(place, *words) for _ in range(24)]
    assert {trace.code for trace in traces} == {0}
    counts = [len(trace.flushes) for trace in traces]
    print("flushes:", counts, "bytes:", [trace.written for trace in traces])
    assert min(counts) >= 1, "nothing was made durable"
    assert max(counts) <= 6
    assert sorted(counts)[len(counts) // 2] <= 3
    assert sum(counts) / len(counts) <= 3.3
