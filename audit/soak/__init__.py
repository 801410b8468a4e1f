"""Honest and hostile work in a mix, for minutes: `python -m audit.soak [sandbox|engine|server|serving] --minutes N`.

Every result is compared with what is known to be right, and after every round memory, open descriptors, threads and
child processes are counted: nothing may grow. It talks to the loopback only. The hostile programs, requests and servers
are those of tests/ and bench/.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests", "bench"):
    if str(ROOT / folder) not in sys.path:
        sys.path.append(str(ROOT / folder))
