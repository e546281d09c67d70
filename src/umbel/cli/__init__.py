"""The `umbel` command: the outermost shell, above the five packages. It parses, prints and sets
exit codes.
"""
