"""Start this very program again: the same interpreter on the same archive or tree."""

import os
import sys

import qinglong_edge

_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from qinglong_edge.{module} import {function}; {function}()"
)


def command(module: str, function: str) -> list[str]:
    """Return the words that run one function of this package in a fresh interpreter.

    The package is named by its own place and nothing else: no environment, no site, no directory
    of the caller can put another one in front of it.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(qinglong_edge.__file__)))
    start = _START.format(module=module, function=function)
    return [sys.executable, "-I", "-S", "-B", "-c", start, root]
