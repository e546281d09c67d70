"""The served OpenAPI document is true: schemathesis calls every operation as it says."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode, openapi
from schemathesis.core.failures import AcceptedNegativeData, FailureGroup
from schemathesis.openapi.checks import RejectedPositiveData
from schemathesis.schemas import APIOperation, BaseSchema
from unit.server.scripted_engine import ServerRig, server

NUM_EXAMPLES = 5  # of each operation and mode
OPERATIONS = (
    "GET /v1/models", "GET /v1/models/{name}", "POST /v1/completions", "POST /v1/chat/completions",
    "POST /v1/responses", "POST /v1/score", "POST /v1/programs", "POST /v1/grammars/check",
    "POST /tokenize", "POST /detokenize", "POST /flush_cache", "GET /health", "GET /ready",
    "GET /metrics", "GET /dashboard", "GET /dashboard/data",
    "POST /v1/files", "GET /v1/files", "GET /v1/files/{id}", "DELETE /v1/files/{id}",
    "GET /v1/files/{id}/content", "POST /v1/batches", "GET /v1/batches", "GET /v1/batches/{id}",
    "POST /v1/batches/{id}/cancel", "GET /v1/traces", "GET /v1/traces/{id}",
)  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ServerRig, BaseSchema]]:
    with server() as rig:
        rig.script("yes and so on")

        async def without_lifespan(scope: Any, receive: Any, send: Any) -> None:
            """Each call would start the application and end it."""
            if scope["type"] != "lifespan":
                await rig.app(scope, receive, send)
                return
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})

        yield rig, openapi.from_asgi("/openapi.json", without_lifespan)


def operations_of(schema: BaseSchema) -> dict[str, APIOperation]:
    found = (result.ok() for result in schema.get_all_operations())
    return {operation.label: operation for operation in found}


def test_every_operation_is_called(served: tuple[ServerRig, BaseSchema]) -> None:
    assert sorted(operations_of(served[1])) == sorted(OPERATIONS)


@pytest.mark.parametrize("label", OPERATIONS)
def test_answers_are_as_the_document_says(served: tuple[ServerRig, BaseSchema], label: str) -> None:
    rig, schema = served
    operation = operations_of(schema)[label]
    modes = list(GenerationMode) if operation.body else [GenerationMode.POSITIVE]
    for mode in modes:

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=NUM_EXAMPLES, deadline=None, derandomize=True, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        def call(case: Case) -> None:
            check(case)

        call()
    rig.check_nothing_is_held()


def check(case: Case) -> None:
    """Status, content type and body are documented, nothing fails, and nonsense is refused."""
    answer = case.call()
    assert answer.status_code < 500
    try:
        case.validate_response(answer)
    except FailureGroup as group:
        failures = [one for one in group.exceptions if not is_meant(one, case)]
        if failures:
            raise FailureGroup(failures) from None


def is_meant(failure: Exception, case: Case) -> bool:
    """What a schema cannot say (an empty list of messages, an unknown id) is refused, too; an
    unknown field that is null counts as not given.
    """
    has_nulls = isinstance(case.body, dict) and None in case.body.values()
    return isinstance(failure, RejectedPositiveData) or (
        isinstance(failure, AcceptedNegativeData) and has_nulls
    )
