"""Passes: functions from graph to graph, each of which may be left out. None changes an output."""

from umbel.frontend_dsl.passes.pipeline import PASSES, PassReport, optimized

__all__ = ["PASSES", "PassReport", "optimized"]
