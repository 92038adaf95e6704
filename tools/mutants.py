"""Remove each guard of the domain in turn, and see that a test notices.

`tools/guards.py` says what a guard is. The tests are collected once; each guard then gets a forked
process that replaces the code of one function in memory and runs tests until the first one fails:
those of its own module (tests/unit/domain/test_<module>*.py), the other ones of tests/unit/domain,
and, where all of these pass, tests/contract. Nothing is written into the source tree.

Prints one line for each guard that no test missed, then the counts. ALLOWED names the guards whose
removal changes nothing that a caller could see. Exit 1: a guard was not missed, or an allowed one
was; exit 2: there was nothing to try, or the tests fail with every guard in place.

Run it from the root: `python3 -m tools.mutants`.
"""

import argparse
import ast
import contextlib
import importlib
import io
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from tools.guards import Guard, guards, remove

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "qinglong_edge.domain"
DOMAIN = PACKAGE.replace(".", "/")
UNIT, CONTRACT = "tests/unit/domain", "tests/contract"  # the quick ones first
JOBS = 2
TEST_SECONDS = 30  # none of these tests takes two; one that does not end has noticed
MEMORY_BYTES_MAX = 2 << 30
PASSED, FAILED, BROKEN = 0, 1, 70
NO_FENCE = "no lease has no fence, and fences are compared below"
LONG_PERMISSION = "the pattern and the names of the contract are shorter than its bound"

# The name of a guard, and why nobody can see that it is gone. Most of them only tell the type
# checker what the line before or after says as well.
ALLOWED = {
    "dispatch.renew: or lease is None": NO_FENCE,
    "dispatch.expire: or lease is None": NO_FENCE,
    "evidence.renew: if control is None or control.lease is None": NO_FENCE,
    "evidence.renew: or control.lease is None": NO_FENCE,
    "dispatch._watched: if moved.control is None": "`_may_prolong` asked for the control before",
    "dispatch._wait: or 0": "whoever waits has said for how long",
    "ids.check_permission: and len(value) <= limits.PERMISSION_CHARS_MAX": LONG_PERMISSION,
    "ids.check_permission: boundary of len(value) <= limits.PERMISSION_CHARS_MAX": LONG_PERMISSION,
    "totp.recovery_digest: boundary of set(code) <= set(_ALPHABET)": (
        "twenty characters never are all thirty-two"
    ),
}


class CannotTryError(Exception):
    """Say why the guards could not be tried."""


class Mutant(NamedTuple):
    """Hold a guard and the syntax tree of its module, which the edits of the guard belong to."""

    guard: Guard
    tree: ast.Module


class Trial(NamedTuple):
    """Hold what became of one guard; `noticed_by` None means that every test passed."""

    guard: Guard
    noticed_by: str | None


def all_mutants(root: Path) -> list[Mutant]:
    """Return every guard of the domain, in the order of modules and lines."""
    found = []
    for path in sorted((root / DOMAIN).glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"), str(path))
        found += [Mutant(guard, tree) for guard in guards(path.stem, tree)]
    return found


class Bench:
    """Try guards in forks of the one process that collected the tests; a plugin of pytest."""

    def __init__(self, root: Path, mutants: Sequence[Mutant]) -> None:
        """Keep what to try; pytest calls back when it has collected the tests."""
        self._root = root
        self._mutants = mutants
        self._fault: str | None = "the tests could not be collected"
        self._trials: list[Trial] = []

    def run(self) -> list[Trial]:
        """Return what became of every guard; raises `CannotTryError`."""
        suites = [str(self._root / suite) for suite in (UNIT, CONTRACT)]
        there = [suite for suite in suites if Path(suite).is_dir()]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            pytest.main(
                ["-q", "-p", "no:cacheprovider", "-p", "no:benchmark", *there], plugins=[self]
            )
        if self._fault:
            raise CannotTryError(f"{said.getvalue()}\n{self._fault}".strip())
        return self._trials

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every guard on the quick tests, then those that nothing missed on the others."""
        if session.testsfailed:
            return True
        quick: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in session.items:
            quick[item.path.is_relative_to(self._root / UNIT)].append(item)
        try:
            first = _tried(self._mutants, quick[True])
            unseen = {each.guard.name for each in survivors(first)} - set(ALLOWED)
            left = [each for each in self._mutants if each.guard.name in unseen]
            second = {each.guard.name: each for each in _tried(left, quick[False])}
            self._trials = [second.get(each.guard.name, each) for each in first]
            self._fault = None
        except CannotTryError as error:
            self._fault = str(error)
        return True


def _tried(mutants: Sequence[Mutant], items: list[pytest.Item]) -> list[Trial]:
    """Run tests once as they are, then once a guard, those of its own module first."""
    if not mutants or not items:
        return [Trial(each.guard, None) for each in mutants]
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        (fault,) = _forked([(None, items)], Path(place))
        if fault:
            raise CannotTryError(f"fails with every guard in place: {fault}")
        ends = _forked([(each, _own_first(items, each.guard)) for each in mutants], Path(place))
    return [Trial(each.guard, end) for each, end in zip(mutants, ends, strict=True)]


def _own_first(items: list[pytest.Item], guard: Guard) -> list[pytest.Item]:
    return sorted(items, key=lambda item: not item.path.match(f"test_{guard.module}*.py"))


def _forked(
    work: Sequence[tuple[Mutant | None, list[pytest.Item]]], place: Path
) -> list[str | None]:
    """Return for each piece of work which test failed, a few pieces at a time."""
    ends: list[str | None] = [None] * len(work)
    running: dict[int, int] = {}
    try:
        for number, (mutant, items) in enumerate(work):
            if len(running) == JOBS:
                _reap(running, ends, place)
            pid = os.fork()
            if not pid:
                _play(mutant, items, place / str(number))
            running[pid] = number
        while running:
            _reap(running, ends, place)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
    return ends


def _reap(running: dict[int, int], ends: list[str | None], place: Path) -> None:
    pid, status = os.wait()
    number = running.pop(pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what its tests have started
    home = place / str(number)
    code = os.waitstatus_to_exitcode(status)
    if code == BROKEN:
        raise CannotTryError((home / "said").read_text("utf-8"))
    if code != PASSED:
        ends[number] = (home / "said").read_text("utf-8") if code == FAILED else f"signal {-code}"
    shutil.rmtree(home, ignore_errors=True)


def _play(mutant: Mutant | None, items: list[pytest.Item], home: Path) -> NoReturn:
    """Be the child: remove the guard, run tests until one fails, and say which."""
    code, parent = BROKEN, os.getppid()
    try:
        os.setsid()
        home.mkdir()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(home)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        if mutant is not None:
            module = importlib.import_module(f"{PACKAGE}.{mutant.guard.module}")
            remove(mutant.guard, mutant.tree, module)
        code = PASSED
        for item, following in zip_longest(items, items[1:]):
            if os.getppid() != parent:
                break  # nobody waits for the answer any more
            signal.alarm(TEST_SECONDS)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                code = FAILED
                (home / "said").write_text(item.nodeid, "utf-8")
                break
    except BaseException:  # noqa: BLE001  # a child that breaks has noticed nothing
        code = BROKEN
        (home / "said").write_text(traceback.format_exc(), "utf-8")
    finally:
        os._exit(code)


def survivors(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that no test has noticed."""
    return [each for each in trials if each.noticed_by is None]


def report(trials: Sequence[Trial], allowed: Iterable[str]) -> tuple[list[str], bool]:
    """Return what to print, and whether every guard did as expected."""
    missed = [each for each in survivors(trials) if each.guard.name not in allowed]
    spoken = [each for each in trials if each.noticed_by and each.guard.name in allowed]
    lines = [f"{_place(each.guard)} no test misses it" for each in missed]
    lines += [f"{_place(each.guard)} allowed, but missed by {each.noticed_by}" for each in spoken]
    noticed = len(trials) - len(survivors(trials))
    late = sum(each.noticed_by.startswith(CONTRACT) for each in trials if each.noticed_by)
    silent = len(survivors(trials)) - len(missed)
    lines.append(
        f"{len(trials)} guards: {noticed} noticed ({late} of them by {CONTRACT} only), "
        f"{len(missed)} survivors, {silent} allowed"
    )
    return lines, not missed and not spoken


def _place(guard: Guard) -> str:
    return f"{DOMAIN}/{guard.module}.py:{guard.line}: [{guard.name}]"


def chosen(mutants: Sequence[Mutant], options: argparse.Namespace) -> list[Mutant]:
    """Return the guards that the options ask for; a sample keeps their order."""
    modules = set(options.module) or {each.guard.module for each in mutants}
    if options.changed is not None:
        command = ["git", "diff", "--name-only", options.changed, "--", DOMAIN]
        done = subprocess.run(command, cwd=options.root, capture_output=True, text=True, check=True)
        modules &= {Path(line).stem for line in done.stdout.splitlines()}
    found = [each for each in mutants if each.guard.module in modules]
    if options.sample is None or options.sample >= len(found):
        return found
    draw = random.Random(options.seed)  # noqa: S311  # a sample, not a secret
    drawn = draw.sample(range(len(found)), options.sample)
    return [found[at] for at in sorted(drawn)]


def main(argv: list[str]) -> int:
    """Try the guards asked for and print what became of them."""
    parser = argparse.ArgumentParser(description="Remove each guard; a test must notice.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to try")
    parser.add_argument("--module", action="append", default=[], help="only this module's guards")
    parser.add_argument("--changed", metavar="REF", help="only modules changed since this commit")
    parser.add_argument("--sample", type=int, metavar="N", help="only N guards, drawn by --seed")
    parser.add_argument("--seed", default="0", help="any text (default 0)")
    parser.add_argument("--verbose", action="store_true", help="print who noticed each guard")
    options = parser.parse_args(argv)
    began = time.monotonic()
    mutants = chosen(all_mutants(options.root), options)
    if not mutants:
        print("no guards to try", file=sys.stderr)
        return 0 if options.changed is not None else 2
    try:
        trials = Bench(options.root, mutants).run()
    except CannotTryError as error:
        print(error, file=sys.stderr)
        return 2
    if options.verbose:
        print("\n".join(f"{_place(each.guard)} {each.noticed_by}" for each in trials))
    lines, good = report(trials, ALLOWED)
    print("\n".join(lines) + f", {time.monotonic() - began:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
