"""Read named statements from the packaged `.sql` files; knows no database.

A statement begins with a line `-- name: verb_noun`, goes on with one comment line of purpose, and
ends where the next one begins; `{name}` stands for an earlier statement of the same file. Files are
read with `pkgutil`, so a zipapp serves as well as a tree.
"""

import pkgutil

from qinglong_edge.domain.errors import InvariantBroken

_MARK = "-- name: "


def load(package: str, file: str) -> dict[str, str]:
    """Return the statements of one file by name; raises `InvariantBroken` where it is malformed."""
    statements: dict[str, str] = {}
    name, lines = "", list[str]()
    for line in [*text(package, file).splitlines(), _MARK]:
        if not line.startswith(_MARK):
            lines.append(line)
            continue
        if name:
            statements[name] = _body(name, lines, statements)
        name, lines = line.removeprefix(_MARK).strip(), []
        if name in statements:
            raise InvariantBroken(f"statement {name} stands twice in {file}")
    return statements


def text(package: str, file: str) -> str:
    """Return a packaged text file."""
    data = pkgutil.get_data(package, file)
    if data is None:
        raise InvariantBroken(f"{file} is missing from this program")
    return data.decode("utf-8")


def _body(name: str, lines: list[str], earlier: dict[str, str]) -> str:
    body = "\n".join(line for line in lines if not line.startswith("--")).strip()
    if not body:
        raise InvariantBroken(f"statement {name} is empty")
    for other, text_of_other in earlier.items():
        body = body.replace("{" + other + "}", text_of_other)
    return body
