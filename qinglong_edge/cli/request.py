"""What a call asks for, and everything of the process that it may touch."""

from collections.abc import Mapping
from typing import BinaryIO, NamedTuple, TextIO

from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.ports.ambient import Clocks, Entropy
from qinglong_edge.ports.probe import Probe


class Options(NamedTuple):
    """Hold the global options: given on the command line, else in the environment, else None."""

    state: str | None = None
    json: bool = False
    session: str | None = None
    token_file: str | None = None
    socket: str | None = None


class Request(NamedTuple):
    """Hold one command in dotted form (`action.propose`) with its checked arguments."""

    command: str
    args: JsonObject
    options: Options


class Streams(NamedTuple):
    """Hold the three standard streams; stdin in bytes, because people hand in files through it."""

    stdin: BinaryIO
    stdout: TextIO
    stderr: TextIO
    stdin_is_tty: bool
    stdout_is_tty: bool


class Surroundings(NamedTuple):
    """Hold what the process gives to a command: streams, environment, clocks, entropy, probe."""

    streams: Streams
    environ: Mapping[str, str]
    clocks: Clocks
    entropy: Entropy
    probe: Probe
