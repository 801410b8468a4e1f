"""The program: `ponder`, and `python -m ponder`."""

import sys

from ponder import signals


def main() -> int:
    signals.install()  # before anything else is imported: that takes longer than a user takes to press Ctrl-C
    from ponder.cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
