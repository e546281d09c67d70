"""Reading an upload: multipart/form-data (RFC 7578), whole and in memory; its size was bounded
when it was read.
"""

import re
from dataclasses import dataclass

from umbel.runtime.errors import InvalidRequest

MAX_PARTS = 16
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_PARAMETER = re.compile(r';\s*(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form."""

    content: bytes
    filename: str | None

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", errors="replace")


def parse_form(content_type: str, data: bytes) -> dict[str, Part]:
    """The fields of a form by name. Raises `InvalidRequest` for what is none."""
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or found is None:
        raise InvalidRequest(
            f"the content type is {content_type!r}; send multipart/form-data with a boundary"
        )
    mark = b"--" + (found[1] or found[2]).encode("latin-1", errors="replace")
    if not data.startswith(mark):
        raise InvalidRequest("the body does not begin with the boundary of its content type")
    pieces = data[len(mark) :].split(b"\r\n" + mark, MAX_PARTS + 1)
    if not pieces[-1].startswith(b"--"):
        raise InvalidRequest(f"the form is cut short, or has more than {MAX_PARTS} fields")
    return dict(_part(piece) for piece in pieces[:-1])


def _part(piece: bytes) -> tuple[str, Part]:
    head, blank_line, content = piece.partition(b"\r\n\r\n")
    if not blank_line:
        raise InvalidRequest("a field of the form has no end of its headers")
    for header in head.decode("utf-8", errors="replace").split("\r\n"):
        name, _, value = header.partition(":")
        if name.strip().lower() == "content-disposition":
            parameters = dict(_PARAMETER.findall(value))
            if "name" in parameters:
                return parameters["name"], Part(content, parameters.get("filename"))
    raise InvalidRequest("a field of the form has no name")
