"""Entropy that counts: every draw is different and every run draws the same."""


class CounterEntropy:
    """Draw 1, 2, 3, ... as big-endian bytes."""

    def __init__(self, start: int = 0) -> None:
        self.draws = start

    def __call__(self, size: int, /) -> bytes:
        self.draws += 1
        return (self.draws % (1 << 8 * size)).to_bytes(size, "big")
