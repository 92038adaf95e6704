"""Turn argv into a request: words, options, environment, drawn ids, and the files it names.

Only the parser of the command that was asked for is built. Whatever is wrong is one `UsageError`
with a hint; the words of a wrong call are not repeated, because one of them may be a secret.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from qinglong_edge.cli.inputs import STDIN, Source
from qinglong_edge.cli.request import Options, Request, Surroundings
from qinglong_edge.cli.table import (
    FROM,
    GLOBALS,
    PASSWORD,
    PLAN,
    RECOVERY,
    ROWS,
    Draw,
    Parameter,
    Row,
)
from qinglong_edge.cli.text import plain
from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.canonical import Fields, Json, parse_object
from qinglong_edge.domain.errors import UsageError

PROGRAM = "qinglong-edge"
HELP = "help"
VERSION = "version"
FROM_BYTES_MAX = 16_384
TOKEN_BYTES = 32

_GROUPS = frozenset(name.partition(" ")[0] for name in ROWS if " " in name)
_GLOBALS = {option.name: option for option in GLOBALS}
_WORDS = {"-h": HELP, "--help": HELP, "--version": VERSION}
_OURS = "global:"  # keeps the global --state apart from a command's own
_ENVIRONMENT = "QINGLONG_EDGE_"
_WALL_MS_MAX = 2**48 - 1  # what an id has room for

Values = dict[str, Json]


class _Call(NamedTuple):
    """Hold argv taken apart: command words, global options before them, and everything after."""

    words: tuple[str, ...]
    given: dict[str, str | bool]
    rest: list[str]
    asked: str | None


def parse(argv: Sequence[str], surroundings: Surroundings) -> Request:
    """Return the request that argv, environment and the named files make; raises `UsageError`.

    Files are read, and a terminal is asked, only after every option was found to be right.
    """
    topic = ""
    try:
        call = _take_apart(argv)
        name = " ".join(call.words)
        topic = name if name in ROWS else _group(call.words)
        if call.asked is not None:
            return Request(call.asked, {"topic": topic}, Options(json=wants_json(argv)))
        row = ROWS.get(name)
        if row is None:
            raise _no_command(call.words)
        found = _parse_rest(call.rest, row, name=name)
        options = _options(call.given, found, environ=surroundings.environ)
        values = _complete(_arguments(row, found), name, source=Source(surroundings.streams))
        _draw(values, row, surroundings=surroundings)
        return Request(name.replace(" ", "."), values, options)
    except UsageError as error:
        words = f"{PROGRAM} {topic}".rstrip()
        error.details.setdefault("hint", f"{words} -h shows what can be said")
        raise


def wants_json(argv: Sequence[str]) -> bool:
    """Tell whether argv asks for JSON, also where it cannot be parsed."""
    words = list(argv)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _take_apart(argv: Sequence[str]) -> _Call:
    words: list[str] = []
    given: dict[str, str | bool] = {}
    asked = _asked(argv)
    left = list(argv)
    while left and " ".join(words) not in ROWS:
        token = left.pop(0)
        name, equals, value = token.partition("=")
        option = _GLOBALS.get(name)
        if token in _WORDS:
            continue
        if option is not None and option.read is None and not equals:
            given[option.key] = True
        elif option is not None and option.read is not None:
            if not equals and not left:
                raise _wrong(f"{name}: a value is missing")
            if option.key in given:
                raise _wrong(f"{name}: given twice")
            given[option.key] = value if equals else left.pop(0)
        elif token.startswith("-"):
            raise _wrong(f"{_shown(name)}: not an option before a command")
        else:
            words.append(token)
            if len(words) > 1 or token not in _GROUPS:
                break
    return _Call(tuple(words), given, left, asked)


def _asked(argv: Sequence[str]) -> str | None:
    """Tell whether help or the version is wanted; help wins."""
    words = list(argv)
    words = words[: words.index("--")] if "--" in words else words
    found = {_WORDS[word] for word in words if word in _WORDS}
    return min(found, default=None)


_UNUSED_WIDTH = 100


class _Parser(argparse.ArgumentParser):
    """Parse without ever printing or exiting."""

    def _get_formatter(self) -> argparse.HelpFormatter:
        """Return a formatter of fixed width: asking for the terminal's would load `shutil`."""
        return argparse.HelpFormatter(self.prog, width=_UNUSED_WIDTH)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would have printed, without the values of the call."""
        said, refused, _ = message.partition(": ignored explicit argument")
        if refused:
            said += ": takes no value"
        raise _wrong(said.removeprefix("argument "))


class _Once(argparse.Action):
    """Keep one value; a second one is refused, because either could be the one that was meant."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002  # the signature is argparse's
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Put the text away; a directory given to a command's own `--state` is the global one."""
        dest = self.dest
        if dest == "state" and _names_directory(str(values)):
            dest = f"{_OURS}state"
        if getattr(namespace, dest, None) is not None:
            raise _wrong(f"{option_string}: given twice")
        setattr(namespace, dest, values)


def _names_directory(text: str) -> bool:
    return "/" in text or text in {".", ".."}


def _parse_rest(rest: list[str], row: Row, *, name: str) -> dict[str, str | bool | None]:
    parser = _Parser(prog=PROGRAM, usage="", add_help=False, allow_abbrev=False)
    own = {parameter.name for parameter in row.parameters}
    for parameter in row.parameters:
        _add(parser, parameter, dest=parameter.key)
    for option in GLOBALS:
        if option.name not in own:
            _add(parser, option, dest=f"{_OURS}{option.key}")
    found, extra = parser.parse_known_args(rest)
    if extra:
        option_names = [word.partition("=")[0] for word in extra if word.startswith("-")]
        if option_names and option_names[0] not in {"-", "--"}:
            raise _wrong(f"{_shown(option_names[0])}: no option of `{name}`")
        raise _wrong(f"`{name}` takes fewer words")
    return vars(found)


def _add(parser: argparse.ArgumentParser, parameter: Parameter, *, dest: str) -> None:
    if not parameter.name.startswith("-"):
        parser.add_argument(dest, metavar=parameter.name, action=_Once)
    elif parameter.read is None:
        parser.add_argument(parameter.name, dest=dest, action="store_true")
    else:
        parser.add_argument(
            parameter.name, dest=dest, action=_Once, required=parameter.required, default=None
        )


def _options(
    before: Mapping[str, str | bool],
    found: Mapping[str, str | bool | None],
    *,
    environ: Mapping[str, str],
) -> Options:
    """Return the global options: before or after the command, else from the environment."""
    texts: dict[str, str | None] = {}
    for option in GLOBALS:
        if option.read is None:
            continue
        first, second = before.get(option.key), found.get(f"{_OURS}{option.key}")
        if first is not None and second is not None:
            raise _wrong(f"{option.name}: given twice")
        text = second if first is None else first
        if text is None:
            text = environ.get(_ENVIRONMENT + option.key.upper()) or None
        texts[option.key] = None if text is None else str(option.read(str(text), option.key))
    if texts["session"] is not None and texts["token_file"] is not None:
        raise UsageError(
            "usage",
            "a session and a token are both given: who is calling?",
            {"hint": "leave one of them out; both can also come from the environment"},
        )
    as_json = bool(before.get("json")) or bool(found.get(f"{_OURS}json"))
    return Options(texts["state"], as_json, texts["session"], texts["token_file"], texts["socket"])


def _arguments(row: Row, found: Mapping[str, str | bool | None]) -> Values:
    """Return the value of each parameter, read and checked."""
    values: Values = {}
    for parameter in row.parameters:
        text = found.get(parameter.key)
        if parameter.read is None:
            values[parameter.key] = bool(text)
        elif text is None:
            values[parameter.key] = parameter.default
        else:
            values[parameter.key] = parameter.read(str(text), parameter.key)
    return values


def _complete(values: Values, name: str, *, source: Source) -> Values:
    """Return the arguments with what the named files hold in place of their names."""
    if name == "init":
        return _init(values, source)
    if PLAN in values:
        path = str(values[PLAN])
        values[PLAN] = source.text(path, what="plan", most=limits.PLAN_BYTES_MAX)
    elif PASSWORD in values:
        if values.get(RECOVERY) is not None:
            values[RECOVERY] = source.recovery_code(str(values[RECOVERY]))
        _read_password(values, source, new=name in {"user add", "user reset"})
    return values


def _read_password(values: Values, source: Source, *, new: bool) -> None:
    path, name = values[PASSWORD], str(values.get("name") or values.get("owner"))
    file = None if path is None else str(path)
    values[PASSWORD] = source.password(file, name=name, new=new)


def _init(values: Values, source: Source) -> Values:
    """Return the arguments of init from its options, or from a first-boot file instead of them."""
    file = values.pop(FROM)
    if file is None:
        if values["owner"] is None:
            raise _wrong("--owner or --from is missing")
        values["enable"] = values["enable"] or []
    elif any(values.values()):
        raise _wrong("--from takes everything from the file, without other options of init")
    else:
        values = _from_file(str(file), source)
    _read_password(values, source, new=True)
    return values


def _from_file(path: str, source: Source) -> Values:
    data = source.text(path, what="first-boot file", most=FROM_BYTES_MAX)
    fields = Fields(parse_object(data.encode(), "first-boot file", most=FROM_BYTES_MAX), "from")
    ids.check_int(fields.take("schema_version"), "from.schema_version", least=1, most=1)
    texts = {"owner": fields.take("owner"), PASSWORD: fields.take("password_file")}
    texts.update({key: fields.maybe(key) for key in ("profile", "project")})
    enable, volatile = fields.maybe("enable", []), fields.maybe("volatile", default=False)
    fields.done()
    if not isinstance(texts["owner"], str) or not isinstance(texts[PASSWORD], str):
        raise ids.invalid("from", "owner and password_file must be texts")
    values: Values = {}
    for parameter in ROWS["init"].parameters:
        text = texts.get(parameter.key)
        if text is not None and not isinstance(text, str):
            raise ids.invalid(f"from.{parameter.key}", "must be text")
        if parameter.read is not None and parameter.key in texts:
            values[parameter.key] = None if text is None else parameter.read(text, parameter.key)
    values[PASSWORD] = _beside(path, str(values[PASSWORD]))
    if not isinstance(enable, list):
        raise ids.invalid("from.enable", "must be a list of action types")
    values["enable"] = [ids.check_ident(word, "from.enable") for word in enable]
    if not isinstance(volatile, bool):
        raise ids.invalid("from.volatile", "must be true or false")
    values["volatile"] = volatile
    return values


def _beside(file: str, path: str) -> str:
    """Return a path that a file names; a relative one begins where that file lies."""
    return path if STDIN in {file, path} else os.path.join(os.path.dirname(file), path)


def _draw(values: Values, row: Row, *, surroundings: Surroundings) -> None:
    """Draw what was left out, so that the same request can be sent again."""
    for key, kind in row.draws:
        if values.get(key) is not None:
            continue
        if kind is Draw.TOKEN:
            values[key] = new_token(surroundings.entropy(TOKEN_BYTES))
        else:
            wall_ms = min(max(surroundings.clocks.read().wall_ms, 0), _WALL_MS_MAX)
            values[key] = ids.new_id(wall_ms, surroundings.entropy)


def new_token(drawn: bytes) -> str:
    """Return random bytes as base64url without padding."""
    from binascii import b2a_base64  # noqa: PLC0415  # two commands draw a token

    return b2a_base64(drawn, newline=False).decode("ascii").translate({43: 45, 47: 95, 61: None})


def _shown(word: str) -> str:
    return plain(word)[:64]


def _wrong(message: str) -> UsageError:
    return UsageError("usage", message)


def _group(words: tuple[str, ...]) -> str:
    return words[0] if words and words[0] in _GROUPS else ""


def _no_command(words: tuple[str, ...]) -> UsageError:
    group = _group(words)
    if not words:
        message = "no command given"
    elif words == (group,):
        message = f"`{group}` needs a second word"
    else:
        message = "unknown command"
    commands = [name for name in ROWS if not group or name.startswith(f"{group} ")]
    return UsageError(
        "unknown_command" if words else "usage",
        f"{message}; there are: {', '.join(commands)}",
        {"commands": [*commands]},
    )
