"""Sets of JSON values: closed under union, intersection and complement, with emptiness decided
exactly.
"""
