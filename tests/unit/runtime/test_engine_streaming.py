"""Streams and asyncio on the simulated engine: order, closing early, slow readers, cancelling."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from unit.runtime.simulated_engine import EngineRig, expected_tokens, rig, text_of

from umbel.runtime.errors import EngineClosed, InvalidConstraint, InvalidRequest
from umbel.runtime.outputs import Chunk
from umbel.runtime.params import SamplingParams

PROMPT = [1, 2, 3, 4, 5, 1, 2]
GREEDY = SamplingParams(temperature=0, max_tokens=6)


def test_the_pieces_of_a_stream_are_the_text() -> None:
    with rig() as made:
        chunks = list(made.engine.stream(PROMPT, GREEDY, logprobs=0))

    tokens = expected_tokens(PROMPT, 6)
    assert "".join(chunk.text for chunk in chunks) == text_of(tokens)
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == tokens
    assert [entry.token_id for chunk in chunks for entry in chunk.logprobs or ()] == tokens
    assert [chunk.completion is not None for chunk in chunks][:-1] == [False] * (len(chunks) - 1)
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.text == text_of(tokens)


def test_a_character_across_two_tokens_comes_in_one_piece() -> None:
    with rig() as made:
        chunks = list(made.engine.stream(PROMPT, regex="[ab]é[ab]", max_tokens=9))

    assert all("\ufffd" not in chunk.text for chunk in chunks)
    assert "".join(chunk.text for chunk in chunks)[1] == "é"


def test_all_n_sequences_are_in_one_stream() -> None:
    with rig() as made:
        chunks = list(made.engine.stream(PROMPT, GREEDY, n=3))

    assert sorted(chunk.index for chunk in chunks if chunk.completion) == [0, 1, 2]


def test_a_stream_begins_when_it_is_made_and_bad_input_raises_there() -> None:
    with rig() as made, pytest.raises(InvalidRequest, match="prompt is empty"):
        made.engine.stream("")


def test_a_streams_error_is_raised_when_it_is_reached() -> None:
    with rig() as made:
        stream = made.engine.stream(PROMPT, regex="(")

        with pytest.raises(InvalidConstraint):
            next(stream)
        assert list(stream) == []


def test_closing_a_stream_early_stops_the_request() -> None:
    with rig() as made:
        with made.engine.stream(PROMPT, temperature=0, max_tokens=400) as stream:
            next(stream)
        made.check_nothing_is_held()

        assert list(stream) == []
        assert len(made.runner.steps) < 400


def test_dropping_a_stream_stops_the_request() -> None:
    with rig() as made:
        stream = made.engine.stream(PROMPT, temperature=0, max_tokens=400)
        next(stream)
        del stream
        made.check_nothing_is_held()

        assert len(made.runner.steps) < 400


def test_a_reader_that_does_not_read_finds_the_pieces_joined() -> None:
    with rig() as made:
        stream = made.engine.stream(PROMPT, temperature=0, max_tokens=20)
        made.engine.generate([7, 7], temperature=0, max_tokens=60)  # the engine is not held up
        (chunk,) = stream

    assert list(chunk.token_ids) == expected_tokens(PROMPT, 20)
    assert chunk.completion is not None


def test_closing_the_engine_ends_its_streams() -> None:
    made = EngineRig()
    stream = made.engine.stream(PROMPT, temperature=0, max_tokens=400)
    next(stream)
    made.engine.close()

    with pytest.raises(EngineClosed):
        list(stream)


def test_agenerate_gives_what_generate_gives() -> None:
    with rig() as made:
        sync = made.engine.generate(PROMPT, GREEDY)

        async def main() -> list[tuple[int, ...]]:
            results = await asyncio.gather(
                *(made.engine.agenerate(PROMPT, GREEDY) for _ in range(3))
            )
            return [result.token_ids for result in results]

        assert asyncio.run(main()) == [sync.token_ids] * 3


def test_agenerate_raises_the_requests_error() -> None:
    async def main() -> None:
        await made.engine.agenerate(PROMPT, regex="(")

    with rig() as made, pytest.raises(InvalidConstraint):
        asyncio.run(main())


def test_cancelling_a_task_stops_its_request() -> None:
    async def main() -> None:
        started = asyncio.Event()

        async def read() -> None:
            async for _ in made.engine.astream(PROMPT, temperature=0, max_tokens=400):
                started.set()

        tasks = [
            asyncio.create_task(read()),
            asyncio.create_task(made.engine.agenerate(PROMPT, temperature=0, max_tokens=400)),
        ]
        await started.wait()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)

    with rig() as made:
        asyncio.run(main())
        made.check_nothing_is_held()

        assert len(made.runner.steps) < 400


def test_astream_gives_the_text_in_pieces() -> None:
    async def main() -> list[Chunk]:
        return [chunk async for chunk in made.engine.astream(PROMPT, GREEDY)]

    with rig() as made:
        chunks = asyncio.run(main())

    assert "".join(chunk.text for chunk in chunks) == text_of(expected_tokens(PROMPT, 6))


def test_leaving_an_astream_early_stops_the_request() -> None:
    async def main() -> None:
        stream = made.engine.astream(PROMPT, temperature=0, max_tokens=400)
        assert isinstance(stream, AsyncIterator)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]  # an async generator

    with rig() as made:
        asyncio.run(main())
        made.check_nothing_is_held()

        assert len(made.runner.steps) < 400


def test_an_event_loop_that_is_gone_does_not_hurt_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with rig() as made:
        gate = made.hold_steps()
        loop = asyncio.new_event_loop()
        task = loop.create_task(made.engine.agenerate(PROMPT, GREEDY))
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()
        gate.open()
        made.check_nothing_is_held()

    assert caplog.text == ""
