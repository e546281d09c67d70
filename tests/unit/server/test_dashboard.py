"""`/dashboard`: a page that needs nothing else, and data of bounded size that is true."""

import asyncio
import json
import re
from typing import Any

import pytest
from unit.server.scripted_engine import ServerRig, server, user

from umbel.server.dashboard_view import MAX_ENDED, MAX_NODES, MAX_REQUESTS, MAX_TRACKS
from umbel.server.settings import ServerSettings

CHAT = "/v1/chat/completions"
BODY = {"messages": user("tell me"), "max_tokens": 1000}
DEVICE = {"gauge_device": "h100"}  # a known one: this CPU would have to be measured


async def look_at_running(made: ServerRig, bodies: list[Any]) -> Any:
    """What the dashboard shows while requests run."""
    made.script("x" * 4000)
    made.runner.before_step = lambda plan: asyncio.run(asyncio.sleep(0.001))
    connections = [made.connection("POST", CHAT, body) for body in bodies]
    running = [asyncio.create_task(one.run()) for one in connections]
    while made.engine.stats().num_generated_tokens < 20 * len(bodies):
        await asyncio.sleep(0.002)
    shown = (await made.connection("GET", "/dashboard/data").run()).json
    for one in connections:
        one.has_left.set()
    await asyncio.gather(*running)
    return shown


def test_the_page_is_whole_and_asks_nobody_but_this_server() -> None:
    with server(**DEVICE) as made:
        answer = made.get("/dashboard")

    page = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/html")
    assert re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']*["']""", page) == []
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|\sstyle=|\son[a-z]+=\"", page)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == page.count("<script>") + page.count("<style>") == 2


def test_the_page_shows_before_anything_was_asked() -> None:
    with server(**DEVICE) as made:
        data = made.get("/dashboard/data").json

    assert data["counts"]["requests"] == 0
    assert data["first_token_s"] == {"p50": None, "p95": None, "count": 0}
    assert data["requests"] == []
    assert data["gauge"] is None
    assert data["cache"]["free_blocks"] == data["cache"]["total_blocks"]


def test_requests_that_run_stand_where_they_read_the_tree() -> None:
    same, other = BODY, {**BODY, "messages": user("other"), "n": 2}
    with server(**DEVICE) as made:
        data = asyncio.run(look_at_running(made, [same, same, other]))

    rows = {row["id"]: row for row in data["tree"]}
    assert all(row["parent"] is None or row["parent"] in rows for row in rows.values())
    running = [request for request in data["requests"] if request["is_running"]]
    assert sorted(len(request["tracks"]) for request in running) == [1, 1, 2]
    for request in running:
        assert request["tracks"][0]["state"] == "decoding"
        assert set(request["tracks"][0]["text"]) == {"x"}
    shared = [row for row in rows.values() if row["text"].startswith("[user]")]
    assert [row["readers"] for row in shared] == [4]
    assert sorted(shared[0]["requests"]) == sorted(request["id"] for request in running)
    assert data["counts"]["running_requests"] == 4
    assert data["steps"]


def test_two_samples_give_rates_against_the_device() -> None:
    with server(**DEVICE) as made:
        made.get("/dashboard/data")
        made.post(CHAT, BODY)
        made.app.service.tracer.recent()
        asyncio.run(asyncio.sleep(1.01))  # the least time between two samples
        data = made.get("/dashboard/data").json

    shares = [data["gauge"][name] for name in ("weights", "kv", "compute", "overhead", "host")]
    assert sum(shares) == pytest.approx(1.0)
    assert data["gauge"]["advice"]
    (moment,) = data["history"]
    assert 0 < moment["tokens_per_s"] < moment["limit_tokens_per_s"]
    assert data["first_token_s"]["count"] == 1
    assert data["inter_token_s"]["p50"] > 0


def test_the_data_is_bounded() -> None:
    with server(max_running=256, **DEVICE) as made:
        prompts = [f"{number % 10}{number}" for number in range(200)]
        for some in (*(prompts[at : at + 5] for at in range(0, 100, 5)), prompts):
            made.post("/v1/completions", {"prompt": some, "max_tokens": 3})
        answer = made.get("/dashboard/data")

    data = answer.json
    assert len(data["tree"]) == MAX_NODES
    assert data["hidden_nodes"] > 0
    assert len(data["requests"]) <= MAX_REQUESTS + MAX_ENDED
    assert sum(len(request["tracks"]) for request in data["requests"]) <= MAX_TRACKS
    assert len(answer.body) < 150_000


def test_nobody_sees_another_key_s_texts() -> None:
    with server(ServerSettings(api_keys=("one", "two")), **DEVICE) as made:
        made.post(CHAT, {**BODY, "max_tokens": 5}, authorization="Bearer one")
        mine = made.get("/dashboard/data", authorization="Bearer one").json
        theirs = made.get("/dashboard/data", authorization="Bearer two").json
        page, nobody = made.get("/dashboard"), made.get("/dashboard/data")

    assert "tell me" in json.dumps(mine["tree"])
    assert len(mine["requests"]) == 1
    assert (theirs["tree"], theirs["requests"]) == ([], [])
    assert theirs["counts"] == mine["counts"]
    assert (page.status, nobody.status) == (200, 401)
