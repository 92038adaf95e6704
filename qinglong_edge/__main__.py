"""Run the command line: `python3 -m qinglong_edge`."""

import os

if __name__ == "__main__":
    try:
        from qinglong_edge.cli.main import run

        run()
    except KeyboardInterrupt:
        os._exit(130)
