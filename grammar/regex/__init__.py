"""Regular expressions: text to syntax tree, tree to character automaton, characters to bytes."""
