"""From a conversation with tools and a format to a job for the engine: what chats and responses
have in common. Runs in a worker.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from umbel.runtime.errors import InvalidConstraint
from umbel.runtime.params import SamplingParams
from umbel.server.call import Job
from umbel.server.constraints import Wanted
from umbel.server.messages import template_messages, with_tools_described
from umbel.server.output import OutputReader
from umbel.server.protocol.chat import ChatMessage
from umbel.server.service import Service
from umbel.server.thinking import Thought
from umbel.server.tools import ToolConstraint, ToolPlan, build_tool_constraint, custom_options

_TOOLS = re.compile(r"\btools\b")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a body asks for."""

    messages: Sequence[ChatMessage]
    options: dict[str, Any]  # of `SamplingParams`, without constraint
    plan: ToolPlan | None = None
    wanted: Wanted | None = None  # constraint of the answer's text
    is_thinking: bool = True  # where the model can
    template_vars: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation, checked and tokenized."""

    job: Job
    plan: ToolPlan | None
    constraint: ToolConstraint | None
    wanted: Wanted | None

    def reader(self) -> OutputReader:
        """A reader for one of the sequences."""
        return OutputReader(self.plan, self.constraint)

    async def locate(self, service: Service, error: InvalidConstraint) -> None:
        """Name the field of the body that a constraint's error is about."""
        if self.constraint is None or not self.constraint.options:
            error.param = self.wanted.field if self.wanted is not None else error.param
            return
        error.param = "tools"
        await service.work(self._locate_tool, service, error)

    def _locate_tool(self, service: Service, error: InvalidConstraint) -> None:
        """The parts of a structural tag are compiled by themselves until one fails alike."""
        if self.wanted is not None:
            parts = [(self.wanted.field, {self.wanted.kind: self.wanted.source})]
        else:
            parts = []
        for tool in self.plan.tools if self.plan is not None else ():
            if tool.kind == "function":
                parts.append((f"{tool.field}.parameters", {"json_schema": tool.parameters}))
            elif tool.grammar is not None:
                parts.append((f"{tool.field}.format", custom_options(tool)))
        for field_name, options in parts:
            try:
                service.engine.compile_constraint(SamplingParams(**options))
            except InvalidConstraint as exc:
                error.param, error.where = field_name, exc.where
                return


def make_task(service: Service, asked: Conversation) -> Task:
    """Raises `InvalidRequest` for what cannot be done."""
    constraint, wanted = None, asked.wanted
    if asked.plan is not None and asked.plan.tools:
        if asked.plan.is_required:
            wanted = None  # a required call leaves no text for a format to apply to
        constraint = build_tool_constraint(asked.plan, service.call_syntax, wanted)
    of_answer = {wanted.kind: wanted.source} if wanted is not None else {}
    options = {**asked.options, **(constraint.options if constraint is not None else of_answer)}
    params = SamplingParams(**options)
    prompt_ids = _encode(service, asked, constraint)
    thought: Thought | None = None
    if service.think_tags is not None and asked.is_thinking:
        prompt_ids, thought = service.think_tags.open(prompt_ids)
    return Task(Job(prompt_ids, params, thought), asked.plan, constraint, wanted)


def _encode(service: Service, asked: Conversation, constraint: ToolConstraint | None) -> list[int]:
    template = service.engine.tokenizer.chat_template or ""
    knows_tools = bool(_TOOLS.search(template))
    messages = template_messages(
        asked.messages, knows_tools=knows_tools, syntax=service.call_syntax
    )
    extra = dict(asked.template_vars)
    if asked.plan is not None and asked.plan.offered:
        if knows_tools:
            extra["tools"] = [tool.as_template_sees_it() for tool in asked.plan.offered]
        else:
            syntax = constraint.syntax if constraint is not None else None
            messages = with_tools_described(messages, asked.plan, syntax)
    return service.engine.encode_chat(messages, **extra)
