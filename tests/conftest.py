"""Keep every test on this machine and off the clock."""

import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
PATIENT = ("unit", "contract")  # suites in which a test waits for a signal, never for a while
LOOPBACK = ("127.", "::1", "localhost")


def refuse_foreign(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of `socket.socket` so that it reaches this machine only."""

    def guarded(self: socket.socket, address: Any) -> Any:
        inside = self.family == socket.AF_UNIX or str(address[0]).startswith(LOOPBACK)
        if not inside:
            pytest.fail(f"a test may not talk to {address!r}")
        return call(self, address)

    return guarded


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Let sockets connect within this machine only."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, refuse_foreign(getattr(socket.socket, name)))
        yield


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a directory that other users can cross.

    It lies outside pytest's own, whose parent every other run of pytest closes to them again.
    """
    place = Path(tempfile.mkdtemp(prefix="qinglong-edge-"))
    place.chmod(0o711)
    yield place
    shutil.rmtree(place)


@pytest.fixture(autouse=True)
def no_sleep(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse `time.sleep` called by a unit or contract test itself; the library may use it."""
    if request.path.relative_to(TESTS).parts[0] not in PATIENT:
        return
    sleep = time.sleep

    def guarded(seconds: float) -> None:
        if Path(sys._getframe(1).f_code.co_filename).is_relative_to(TESTS):
            pytest.fail("a test waits for a signal, it does not sleep")
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", guarded)
