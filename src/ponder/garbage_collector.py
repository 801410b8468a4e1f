"""Python's cyclic garbage collector, told what lives as long as the process."""

from __future__ import annotations

import gc
from functools import cache


@cache
def ignore_imported_objects() -> None:
    """Leave what exists now, mostly modules that were imported, out of full collections. For a program before its work
    begins: its imports are hundreds of thousands of objects, and a search with a thousand paths makes enough new ones
    for several collections a second. Only the first call has an effect."""
    gc.freeze()
