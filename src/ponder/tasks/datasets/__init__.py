"""Public sets, read from the folder that PONDER_DATA names."""
