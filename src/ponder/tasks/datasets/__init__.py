"""Public data sets and files of questions, read from the folder PONDER_DATA or from a path."""
