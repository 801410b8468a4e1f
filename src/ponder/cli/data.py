"""`ponder data`: which public data sets there are, where each comes from, whether it is here; and fetch one."""

from __future__ import annotations

from typing import Annotated, Literal

from ponder.cli.progress import print_json
from ponder.errors import UsageError
from ponder.settings import Named


def data(
    action: Annotated[Literal["list", "get"], "list the data sets, or get one"] = "list",
    name: Annotated[str, Named("ponder.tasks.datasets.dataset_sources:SOURCES"), "the data set to get"] = "",
    /,
    *,
    json: Annotated[bool, "JSON lines"] = False,
) -> int:
    """Public data sets that ponder's tasks read: where each comes from, its licence and size, and whether it is here.

    `ponder data get NAME` fetches one into the folder that PONDER_DATA names, or into ponder's cache folder.
    """
    from ponder.tasks.datasets.dataset_files import data_folder
    from ponder.tasks.datasets.dataset_sources import SOURCES, fetch_dataset, is_here

    if action == "get":
        if not name:
            raise UsageError("say which data set to get: ponder data get NAME (ponder data lists them)")
        folder = fetch_dataset(name)
        if json:
            print_json({"data": name, "folder": str(folder)})
        else:
            print(f"{name} is in {folder}")
        return 0
    if name:
        raise UsageError(f"a list has no name: ponder data get {name} fetches it")
    rows = [
        {"data": n, "here": is_here(n), "origin": s.origin, "licence": s.licence, "kilobytes": s.kilobytes}
        for n, s in SOURCES.items()
    ]
    if json:
        for row in rows:
            print_json(row)
        return 0
    print(f"in {data_folder()}:")
    for row in rows:
        here = "here   " if row["here"] else "missing"
        print(f"  {row['data']:<13} {here} {row['kilobytes']:>6,} kB  {row['origin']}  ({row['licence']})")
    print("\n`ponder data get NAME` fetches one; PONDER_DATA names another folder.")
    return 0
