"""Python's cyclic garbage collector, told what lives as long as the process and how often to look."""

from __future__ import annotations

import gc
from functools import cache

# New objects, less those freed, before the collector looks at them; Python's own number is 700 (2,000 since 3.13). A
# thousand sequences of an engine are some 20,000, nearly all of which are freed without it. The others are Python's.
_NEW_OBJECTS = 50_000


@cache
def ignore_imported_objects() -> None:
    """Leave what exists now, mostly modules that were imported, out of full collections, and collect less often. For a
    program before its work begins: its imports are hundreds of thousands of objects, and a search with a thousand paths
    makes enough new ones for several collections a second. Only the first call has an effect."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
