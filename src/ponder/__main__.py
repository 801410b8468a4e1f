"""The program: `ponder`, and `python -m ponder`. Signals are handled before anything else is imported."""

import sys

from ponder import signals

signals.install()


def main() -> int:
    from ponder.cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
