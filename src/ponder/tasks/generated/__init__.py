"""Tasks whose problems are drawn, as many as are wanted, each with a solver for its gold answers."""
