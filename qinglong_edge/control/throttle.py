"""Delay the logins of a uid that failed: never locked, only slower each time (architecture 3.6)."""

from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.ports.ambient import Clocks

DELAY_MS_MIN = 500
DELAY_MS_MAX = 30_000
UIDS_MAX = 1_024  # the one that failed longest ago is forgotten first


class LoginThrottle:
    """Remember the failures of each peer uid while this process lives; one thread uses it."""

    def __init__(self, clocks: Clocks) -> None:
        """Start with nobody delayed."""
        self._clocks = clocks
        self._failed: dict[int, tuple[int, int]] = {}

    def check(self, uid: int) -> None:
        """Let a login of this uid go on; raises `UnavailableError` (`login_delayed`) too early."""
        _, not_before_ms = self._failed.get(uid, (0, 0))
        left_ms = not_before_ms - self._clocks.monotonic_ms()
        if left_ms > 0:
            raise UnavailableError(
                "login_delayed", "a login failed just before; wait a moment", {"wait_ms": left_ms}
            )

    def failed(self, uid: int) -> None:
        """Count a failure: the next login of this uid waits half a second, doubling to thirty."""
        failures = self._failed.pop(uid, (0, 0))[0] + 1
        if len(self._failed) >= UIDS_MAX:
            del self._failed[next(iter(self._failed))]
        wait_ms = min(DELAY_MS_MAX, DELAY_MS_MIN << min(failures - 1, 16))
        self._failed[uid] = (failures, self._clocks.monotonic_ms() + wait_ms)

    def passed(self, uid: int) -> None:
        """Forget the failures of a uid that proved itself."""
        self._failed.pop(uid, None)
