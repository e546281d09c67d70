"""From a program's Python function to its graph: the function is run on symbols."""
