"""The string formats that are enforced, as patterns over the decoded text (RFC 3339, 3986, 3987,
4291, 5321, 6570, ...).

`email` and `hostname` have lengths besides. Formats that are no regular languages stay
annotations: `ANNOTATED`.
"""

_MONTH_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
# Divisible by 4 and not by 100, or divisible by 400; the year 0000 is left out, as Python has no
# such date.
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE = f"(?:{_YEAR}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"


def _leap_seconds() -> str:
    """Second 60 exists only at 23:59 UTC: the local time and the offset go together (whole and
    half hours).
    """
    found = ["23:59:60(?:\\.[0-9]+)?[Zz]"]
    for hour in range(24):
        for minute, ahead, offset in ((59, (hour + 1) % 24, "00"), (29, hour, "30")):
            zone = f"(?:\\+{ahead:02}|-{23 - hour:02}):{offset}"
            found.append(f"{hour:02}:{minute}:60(?:\\.[0-9]+)?{zone}")
    return "|".join(found)


_TIME = (
    "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?"
    f"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])|{_leap_seconds()})"
)
_CLOCK = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_OCTET}(?:\\.{_OCTET}){{3}}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LAST32 = f"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    "(?:"
    + "|".join(
        [
            f"(?:{_H16}:){{6}}{_LAST32}",
            f"::(?:{_H16}:){{5}}{_LAST32}",
            f"(?:{_H16})?::(?:{_H16}:){{4}}{_LAST32}",
            f"(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LAST32}",
            f"(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LAST32}",
            f"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LAST32}",
            f"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LAST32}",
            f"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
            f"(?:(?:{_H16}:){{0,6}}{_H16})?::",
        ]
    )
    + ")"
)
# A label with hyphens in places 3 and 4 claims to be an A-label, which only Punycode could check:
# left out.
_LABEL = (
    "(?:[A-Za-z0-9]|[A-Za-z0-9]{2}|[A-Za-z0-9][A-Za-z0-9-][A-Za-z0-9]"
    "|[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9]{2}|-[A-Za-z0-9])"
    "|[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}[A-Za-z0-9])"
)
_HOSTNAME = f"{_LABEL}(?:\\.{_LABEL})*"
_MAIL_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ATEXT = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = f'(?:{_ATEXT}+(?:\\.{_ATEXT}+)*|"(?:[ !#-\\[\\]-~]|\\\\[ -~])*")'
_DOMAIN = f"(?:{_MAIL_LABEL}(?:\\.{_MAIL_LABEL})*|\\[(?:{_IPV4}|[Ii][Pp][Vv]6:{_IPV6})\\])"
_UCS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(
    f"{chr(plane * 0x10000 + (0x1000 if plane == 14 else 0))}-{chr(plane * 0x10000 + 0xFFFD)}"
    for plane in range(1, 15)
)
_PRIVATE = "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"
_UTF8_ATEXT = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u0080-\U0010fffd-]"
_UTF8_QUOTED = '"(?:[ !#-\\[\\]-~\u0080-\U0010fffd]|\\\\[ -~])*"'
_UTF8_LABEL = (
    "[A-Za-z0-9\u0080-\U0010fffd](?:[A-Za-z0-9\u0080-\U0010fffd-]*[A-Za-z0-9\u0080-\U0010fffd])?"
)


def _uri(extra: str, private: str, *, is_reference: bool) -> str:
    """RFC 3986, and RFC 3987 with further characters."""
    escaped = "%[0-9A-Fa-f]{2}"
    free = f"-A-Za-z0-9._~!$&'()*+,;={extra}"
    segment_char = f"(?:[{free}:@]|{escaped})"
    authority = (
        f"(?:(?:[{free}:]|{escaped})*@)?"
        f"(?:\\[(?:{_IPV6}|[Vv][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]"
        f"|(?:[{free}]|{escaped})*)"
        "(?::[0-9]*)?"
    )
    segments = f"(?:/{segment_char}*)*"
    rooted = f"/(?:{segment_char}+{segments})?"
    tail = f"(?:\\?(?:[{free}:@/?{private}]|{escaped})*)?(?:#(?:[{free}:@/?]|{escaped})*)?"
    path = f"(?://{authority}{segments}|{rooted}|{segment_char}+{segments}|)"
    full = f"[A-Za-z][A-Za-z0-9+.-]*:{path}{tail}"
    if not is_reference:
        return full
    first = f"(?:[{free}@]|{escaped})+"
    return f"(?:{full}|(?://{authority}{segments}|{rooted}|{first}{segments}|){tail})"


_VARCHAR = "(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
_VARSPEC = f"{_VARCHAR}(?:\\.?{_VARCHAR})*(?::[1-9][0-9]{{0,3}}|\\*)?"
_EXPRESSION = f"\\{{[+#./;?&=,!@|]?{_VARSPEC}(?:,{_VARSPEC})*\\}}"
_TEMPLATE_LITERAL = f"(?:[!#$&-;=?-\\[\\]_a-z~{_UCS}{_PRIVATE}]|%[0-9A-Fa-f]{{2}})"
_POINTER = "(?:/(?:[^/~]|~[01])*)*"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": f"P(?:[0-9]+W|{_CLOCK}|{_DAYS}(?:{_CLOCK})?)",
    "email": f"{_LOCAL}@{_DOMAIN}",
    "hostname": _HOSTNAME,
    "idn-email": (
        f"(?:{_UTF8_ATEXT}+(?:\\.{_UTF8_ATEXT}+)*|{_UTF8_QUOTED})"
        f"@(?:{_UTF8_LABEL}(?:\\.{_UTF8_LABEL})*|{_DOMAIN})"
    ),
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "iri": _uri(_UCS, _PRIVATE, is_reference=False),
    "iri-reference": _uri(_UCS, _PRIVATE, is_reference=True),
    "json-pointer": f"(?s:{_POINTER})",
    "relative-json-pointer": f"(?s:(?:0|[1-9][0-9]*)(?:#|{_POINTER}))",
    "time": _TIME,
    "uri": _uri("", "", is_reference=False),
    "uri-reference": _uri("", "", is_reference=True),
    "uri-template": f"(?:{_TEMPLATE_LITERAL}|{_EXPRESSION})*",
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
}
MAX_LENGTHS: dict[str, int] = {"hostname": 253}
# Known names whose languages no finite automaton describes: they assert nothing, with a warning.
ANNOTATED = frozenset({"regex", "idn-hostname"})
