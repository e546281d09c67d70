"""An engine whose model writes what a test tells it, and a client that speaks ASGI to its server.

One token a byte (id = byte + 1); 0 is the end token, 257 to 261 are special tokens.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from unit.runtime.simulated_engine import SHAPE, SteppedRig
from unit.runtime.simulation import NAMESPACE, SimulatedRunner, logprob_of

from umbel.runtime.chat import ChatTemplate
from umbel.runtime.config import EngineConfig
from umbel.runtime.constraints import ConstraintCompiler, make_vocabulary
from umbel.runtime.engine import Engine
from umbel.runtime.outputs import TokenLogprob
from umbel.runtime.parts import EngineParts
from umbel.runtime.roofline.model_costs import ModelCosts
from umbel.runtime.sampler import Sampled, Sampler, SamplingRow
from umbel.runtime.submission import Limits
from umbel.server.app import App, make_app
from umbel.server.settings import ServerSettings

EOS_ID = 0
SPECIALS = {"<s>": 257, "<think>": 258, "</think>": 259, "[TOOL_CALLS]": 260, "[ARGS]": 261}
VOCAB_SIZE = 262
CONTEXT_LEN = 4096
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
MODEL = NAMESPACE.model

Script = Callable[[str], str]


class ByteTokenizer:
    """One token a byte. `special_ids` are those of `specials` only."""

    def __init__(self, template: str | None, specials: Sequence[str]) -> None:
        self.token_bytes: list[bytes | None] = [None] * VOCAB_SIZE
        for byte in range(256):
            self.token_bytes[byte + 1] = bytes([byte])
        self.eos_ids = frozenset({EOS_ID})
        self.chat_template = template
        self.special_names: dict[str, str] = {}
        self.special_ids = {text: SPECIALS[text] for text in specials}
        self.vocab_size = VOCAB_SIZE

    def bos_ids(self) -> list[int]:
        return []

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        for mark, token_id in self.special_ids.items() if special else ():
            if mark in text:
                before, _, after = text.partition(mark)
                head = self.encode(before, special=True)
                return [*head, token_id, *self.encode(after, special=True)]
        return [byte + 1 for byte in text.encode()]

    def spell(self, text: str) -> list[int]:
        return self.encode(text)

    def bytes_of(self, token_id: int, *, skip_special: bool = True) -> bytes:
        names = {} if skip_special else {i: text.encode() for text, i in self.special_ids.items()}
        return self.token_bytes[token_id] or names.get(token_id, b"")

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        data = b"".join(self.bytes_of(i, skip_special=skip_special) for i in ids)
        return data.decode(errors="replace")


class ScriptedSampler:
    """Writes `script(prompt)`, and where a constraint forbids that, the first byte it allows."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self.script: Script = lambda prompt: "hello"
        self.rows: list[SamplingRow] = []
        self._tokenizer = tokenizer

    choose = Sampler.choose  # by the two below

    def sample(
        self,
        states: Sequence[int],
        logits_rows: Sequence[int],
        rows: Sequence[SamplingRow],
        masks: Any = None,
    ) -> list[Sampled]:
        self.rows += rows
        return [self._choose(row, masks) for row in rows]

    def score(
        self,
        states: Sequence[int],
        logits_rows: Sequence[int],
        token_ids: Sequence[int],
        num_top: Sequence[int],
    ) -> list[TokenLogprob]:
        return [
            TokenLogprob(token_id, logprob_of(states[row], token_id), ((98, -0.5),) * top)
            for row, token_id, top in zip(logits_rows, token_ids, num_top, strict=True)
        ]

    def _choose(self, row: SamplingRow, masks: Any) -> Sampled:
        prompt = self._tokenizer.decode(row.tokens[: row.num_prompt], skip_special=False)
        wanted = [*self._tokenizer.encode(self.script(prompt), special=True), EOS_ID]
        token_id = wanted[min(row.num_output, len(wanted) - 1)]
        if row.mask_row is not None:
            mask = masks[row.mask_row]
            allowed = [i for i in range(VOCAB_SIZE) if int(mask[i // 32]) >> (i % 32) & 1]
            token_id = token_id if token_id in allowed else allowed[0]
        top = ((token_id, -0.25), (98, -1.5))
        return Sampled(token_id, TokenLogprob(token_id, -0.25, top[: row.params.logprobs or 0]))


@dataclass(slots=True)
class Answer:
    """What came back. `events` are those of a stream, (name, data)."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[tuple[str | None, Any]]:
        found = []
        for block in self.body.decode().strip().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            data = fields["data"]
            found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
        return found

    @property
    def chunks(self) -> list[Any]:
        return [data for _, data in self.events if data != "[DONE]"]


@dataclass(eq=False)
class Connection:
    """One request, driven by hand: the client may leave, and may stop reading."""

    app: App
    method: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    sent: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.has_left = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._has_given_body = False

    async def run(self) -> Answer:
        raw = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        path, _, query = self.path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
            "method": self.method, "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "headers": raw, "client": ("test", 1),
            "server": ("test", 80), "root_path": "",
        }  # fmt: skip
        await self.app(scope, self._receive, self._send)
        head, *parts = self.sent
        headers = {name.decode(): value.decode() for name, value in head["headers"]}
        return Answer(head["status"], headers, b"".join(part.get("body", b"") for part in parts))

    async def _receive(self) -> dict[str, Any]:
        if not self._has_given_body:
            self._has_given_body = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        await self.may_read.wait()


class ServerRig(SteppedRig):
    """A server over a scripted engine."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        template: str | None = TEMPLATE,
        specials: Sequence[str] = ("<s>",),
        num_blocks: int = 1024,
        tools: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        self.runner = SimulatedRunner(num_blocks, 4)
        tokenizer = ByteTokenizer(template, specials)
        self.sampler = ScriptedSampler(tokenizer)
        vocabulary = make_vocabulary(tokenizer, VOCAB_SIZE)
        parts: Any = EngineParts(
            runner=self.runner,  # type: ignore[arg-type]  # simulated: states for logits
            sampler=self.sampler,  # type: ignore[arg-type]
            tokenizer=tokenizer,  # type: ignore[arg-type]
            chat=ChatTemplate.of(tokenizer),
            compiler=ConstraintCompiler(vocabulary, cache_size=8),
            limits=Limits(CONTEXT_LEN, VOCAB_SIZE, num_blocks, 4),
            namespace=NAMESPACE,
            costs=ModelCosts(SHAPE, "float32", "float32"),
        )
        config = EngineConfig(num_blocks=num_blocks, block_size=4, **options)
        self.engine = Engine.from_parts(parts, config)
        self.app = make_app(self.engine, settings, tools=tools)

    def script(self, text: str | Script) -> None:
        """What the model writes, or what it writes after each prompt."""
        self.sampler.script = (lambda prompt: text) if isinstance(text, str) else text

    def connection(self, method: str, path: str, body: Any = None, **headers: str) -> Connection:
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return Connection(self.app, method, path, data, names)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return asyncio.run(self._ask("POST", path, body, headers))

    def get(self, path: str, **headers: str) -> Answer:
        return asyncio.run(self._ask("GET", path, None, headers))

    async def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
        return await self.connection(method, path, body, **headers).run()


@contextmanager
def server(settings: ServerSettings | None = None, **options: Any) -> Iterator[ServerRig]:
    rig = ServerRig(settings or ServerSettings(), **options)
    try:
        yield rig
    finally:
        rig.app.service.close()
        rig.engine.close()


def hermes(name: str, arguments: str) -> str:
    """A call as the scripted model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def user(text: str = "hi") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
