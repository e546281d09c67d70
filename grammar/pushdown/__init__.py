"""Byte automata with calls: how grammars with recursion and counting are represented, and read by
tokens.
"""
