"""Tasks that are played in turns with an environment."""
