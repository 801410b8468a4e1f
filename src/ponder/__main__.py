"""`python -m ponder` is `ponder`."""

import sys

from ponder.cli import main

if __name__ == "__main__":
    sys.exit(main())
