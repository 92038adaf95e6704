"""Write the help: of the program, of a group of commands, of one command; and the next steps."""

from qinglong_edge.cli.table import GLOBALS, ROWS, Parameter
from qinglong_edge.domain.errors import (
    DamagedError,
    QinglongError,
    RefusedError,
    UnavailableError,
    UsageError,
)

PROGRAM = "qinglong-edge"

_ENVIRONMENT = """\
QINGLONG_EDGE_STATE, _SESSION, _TOKEN_FILE and _SOCKET stand in for the options; an option wins.
Secrets come from files, from - (stdin) or from a terminal, never from the command line."""
_EXITS = """\
exit: 0 done, 2 usage, 3 refused, 4 unavailable, 5 damaged, 10 converging, 20 a person is needed,
70 a bug"""

_AGAIN = "wait a moment and repeat the same call"
_MANIFEST = "write STATE/manifest.json again, mode 0600; docs/operations.md shows how"
_NO_COPY = "keep the files for a person: an older copy would run again what was done since"

_HINTS = {
    "clock_untrusted": f"set the clock, wait ten minutes, or believe it: {PROGRAM} clock trust",
    "handler_not_available": f"{PROGRAM} handler list shows what this build carries",
    "handler_not_enabled": "list the type in STATE/manifest.json; docs/operations.md shows how",
    "log_damaged": "remove that file from STATE/logs: it is output, and no outcome rests on it",
    "log_unreadable": "STATE/logs (0700) and what lies there must belong to the state's uid",
    "login_required": f"{PROGRAM} login NAME opens a session",
    "manifest_damaged": _MANIFEST,
    "manifest_unreadable": _MANIFEST,
    "migration_required": f"{PROGRAM} migrate brings the state to this program's schema",
    "not_initialised": f"{PROGRAM} init --owner NAME makes one; or name another with --state DIR",
    "proposal_denied": "name an agent with --token-file FILE; users decide, they do not propose",
    "approval_version_conflict": f"a held request goes on with {PROGRAM} action dispatch ID",
    "profile_not_local": "the local profiles are edge and standalone",
    "repeats_required": "name that dispatch with --repeats, and a risk of high or critical",
    "state_busy": "try again when the other command has ended",
    "state_volatile": "choose a directory on flash or disk, or say --volatile to init",
    "storage_error": f"{_AGAIN}; if it stays, look at the owner and the mode of the state's files",
    "store_damaged": _NO_COPY,
    "store_missing": "bring back the database itself, or name another directory with --state DIR",
    "store_rolled_back": "bring back the newer database: this one would run again what was done",
    "owner_unreachable": "is serve running, and is this its --socket?",
    "repeats_mismatch": "an outcome that was confirmed is known: propose without --repeats",
    "state_not_owned": "or reach its serve, with --socket PATH and a token or a session",
    "strong_authentication_required": (
        f"log in again with --totp or --recovery-code; {PROGRAM} user totp NAME gives the first key"
    ),
    "too_many_pending": f"{PROGRAM} action list --state pending shows what waits for a decision",
}


def hint(error: QinglongError) -> str | None:
    """Return what to try next, in one line."""
    own = error.details.get("hint")
    if isinstance(own, str):
        return own
    if error.code in _HINTS:
        return _HINTS[error.code]
    if isinstance(error, UsageError):
        return f"{PROGRAM} -h lists the commands"
    if isinstance(error, UnavailableError):
        return _AGAIN if error.retryable else None
    if isinstance(error, DamagedError):
        return (
            f"change nothing and look: {PROGRAM} verify; where it answers the same, call a person"
        )
    if isinstance(error, RefusedError):
        return None
    return "this is a bug; what was stored before stands, and no action is repeated"


def help_text(topic: str) -> str:
    """Return the help of a command (`action list`), a group (`action`), or the whole program."""
    return _command(topic) if topic in ROWS else _overview(topic)


def _command(name: str) -> str:
    row = ROWS[name]
    words = " ".join(_form(parameter) for parameter in row.parameters)
    lines = [f"usage: {PROGRAM} {name} {words}".rstrip(), "", f"{row.summary}"]
    lines += _described("arguments:", row.parameters)
    lines += _described("options of every command:", GLOBALS)
    return "\n".join(lines) + "\n"


def _overview(group: str) -> str:
    names = [name for name in ROWS if not group or name.startswith(f"{group} ")]
    width = max(len(name) for name in names)
    lines = [f"usage: {PROGRAM} {group or 'COMMAND'} ...", "", "commands:"]
    lines += [f"  {name.ljust(width)}  {ROWS[name].summary}" for name in names]
    lines += _described("options of every command:", GLOBALS)
    lines += ["  -h shows the help of a command too; --version tells the version", ""]
    return "\n".join(lines) + f"\n{_ENVIRONMENT}\n{_EXITS}\n"


def _form(parameter: Parameter) -> str:
    words = f"{parameter.name} {parameter.value}".strip()
    return words if parameter.required else f"[{words}]"


def _described(title: str, parameters: tuple[Parameter, ...]) -> list[str]:
    if not parameters:
        return []
    forms = [f"{parameter.name} {parameter.value}".strip() for parameter in parameters]
    width = max(len(form) for form in forms)
    pairs = zip(forms, parameters, strict=True)
    return ["", title, *(f"  {form.ljust(width)}  {each.about}" for form, each in pairs)]
