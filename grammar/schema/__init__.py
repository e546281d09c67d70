"""JSON Schema: loaded, merged and lowered to the syntax tree of regular expressions."""
