"""Context-free grammars as people write them (Lark, GBNF, structural tags), compiled to automata
with calls.
"""
