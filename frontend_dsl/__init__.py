"""The language: programs that generate, choose, fork and join on an engine."""

from umbel.frontend_dsl.calls import assistant, gen, image, select, system, user
from umbel.frontend_dsl.choosing import best
from umbel.frontend_dsl.client import CallHandle, Client
from umbel.frontend_dsl.connection import Connection, connect
from umbel.frontend_dsl.errors import ProgramError, Site
from umbel.frontend_dsl.events import (
    Event,
    ProgramDone,
    ProgramFailed,
    TextDelta,
    VariableDone,
    VariableFailed,
)
from umbel.frontend_dsl.graph_program import GraphProgram, arun_graph, run_graph
from umbel.frontend_dsl.program import Program, program
from umbel.frontend_dsl.record import CallRecord
from umbel.frontend_dsl.remote import Remote
from umbel.frontend_dsl.report import Totals, draw, totals
from umbel.frontend_dsl.state import Forks, State
from umbel.frontend_dsl.tools import Tool, tool

__all__ = [
    "CallHandle",
    "CallRecord",
    "Client",
    "Connection",
    "Event",
    "Forks",
    "GraphProgram",
    "Program",
    "ProgramDone",
    "ProgramError",
    "ProgramFailed",
    "Remote",
    "Site",
    "State",
    "TextDelta",
    "Tool",
    "Totals",
    "VariableDone",
    "VariableFailed",
    "arun_graph",
    "assistant",
    "best",
    "connect",
    "draw",
    "gen",
    "image",
    "program",
    "run_graph",
    "select",
    "system",
    "tool",
    "totals",
    "user",
]
