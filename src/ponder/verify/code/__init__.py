"""Programs: found in an answer, run in the jail, judged outside of it."""
