"""The terminals of Lark's `common` module as regular expressions, so that they need no look-behind.

`_STRING_ESC_INNER` is left out: it has a meaning only between two quotes. Write the string out
instead.
"""

_INT = "[0-9]+"
_DECIMAL = "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)"
_EXP = "[eE][+-]?[0-9]+"
_FLOAT = f"(?:[0-9]+{_EXP}|{_DECIMAL}(?:{_EXP})?)"

COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": _INT,
    "SIGNED_INT": f"[+-]?{_INT}",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"(?:{_FLOAT}|{_INT})",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|{_INT})",
    "ESCAPED_STRING": '"(?:[^"\\\\\\n]|\\\\[^\\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": "[ \\t]+",
    "WS": "[ \\t\\f\\r\\n]+",
    "CR": "\\r",
    "LF": "\\n",
    "NEWLINE": "(?:\\r?\\n)+",
    "SH_COMMENT": "#[^\\n]*",
    "CPP_COMMENT": "//[^\\n]*",
    "C_COMMENT": "/\\*(?:[^*]|\\*+[^*/])*\\*+/",
    "SQL_COMMENT": "--[^\\n]*",
}
