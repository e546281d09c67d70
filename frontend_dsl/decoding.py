"""JSON text to Python values of the type that a `json_schema` was made from."""

from typing import Any

import msgspec


def decode_json(text: str, schema: Any) -> Any:
    """`text` as `schema` (a msgspec Struct, dataclass or other typed form, a pydantic model), else
    as plain data.

    Raises `ValueError` (msgspec's and pydantic's errors are some) when the text does not fit.
    """
    if hasattr(schema, "model_validate_json"):  # pydantic, without depending on it
        return schema.model_validate_json(text)
    is_data = schema is None or isinstance(schema, dict | bool | str)
    return msgspec.json.decode(text) if is_data else msgspec.json.decode(text, type=schema)
