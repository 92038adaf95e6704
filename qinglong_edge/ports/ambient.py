"""What the program asks of the machine: clocks and entropy (architecture 3.1)."""

from typing import Protocol

from qinglong_edge.domain.tick import Reading


class Clocks(Protocol):
    """Read the machine's clocks."""

    def read(self) -> Reading:
        """Return wall time, boot time and boot id in one look; may raise `UnavailableError`."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds that only ever grow while this process lives; for deadlines."""
        ...


class Entropy(Protocol):
    """Draw what nobody can guess."""

    def __call__(self, size: int, /) -> bytes:
        """Return `size` random bytes."""
        ...
