"""Problems from rows: public data sets (from the folder PONDER_DATA or the hub), files of questions, your own rows."""
