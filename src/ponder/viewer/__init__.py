"""`ponder view`: pages that show run directories in a browser, live, and write nothing into them.

`run_listing` names the runs below a folder by ids; `api` answers each path of the JSON interface from run directories
alone; `app` puts it behind HTTP with the files of `page`; `guard` refuses what does not come from that page; `export`
writes the same answers into files.
"""
