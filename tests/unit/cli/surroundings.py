"""A process made of memory: streams that remember, clocks and entropy of the test."""

import io
from collections.abc import Mapping

from qinglong_edge.cli.request import Streams, Surroundings
from qinglong_edge.ports.probe import no_probe
from tests.support.clock import FakeClocks
from tests.support.entropy import CounterEntropy


def surroundings(
    stdin: bytes = b"",
    *,
    environ: Mapping[str, str] | None = None,
    stdin_is_tty: bool = False,
    stdout_is_tty: bool = False,
) -> Surroundings:
    """Return what a process gives to a command."""
    streams = Streams(io.BytesIO(stdin), io.StringIO(), io.StringIO(), stdin_is_tty, stdout_is_tty)
    return Surroundings(streams, environ or {}, FakeClocks(), CounterEntropy(), no_probe)


def printed(around: Surroundings) -> tuple[str, str]:
    """Return what went to stdout and to stderr."""
    out, error = around.streams.stdout, around.streams.stderr
    assert isinstance(out, io.StringIO)
    assert isinstance(error, io.StringIO)
    return out.getvalue(), error.getvalue()
