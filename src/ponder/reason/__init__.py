"""Ways to think: operators on a trace, and strategies that order them. Needs no GPU library."""
