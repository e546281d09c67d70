"""What a program costs in steps of the engine."""

import pytest
from unit.runtime.simulated_engine import rig

from umbel.frontend_dsl import ProgramError, State, gen, program
from umbel.runtime.errors import DeadlineExceeded


@program(ignore_eos=True)
def alternates(s: State) -> None:
    """Text and calls in turns, nothing is read."""
    s += "begin " + gen("a", max_tokens=4)
    s += " then some more text " + gen("b", max_tokens=3)
    s += " and the end " + gen("c", max_tokens=2)


@pytest.mark.parametrize("is_eager", [True, False])
def test_text_after_a_call_takes_no_step_of_its_own(is_eager: bool) -> None:
    """Its tokens, the last sampled one and the next call's first are one step: as many steps as
    there are sampled tokens.
    """
    made = alternates.eager() if is_eager else alternates
    with rig(speculate="off") as engines:
        before = engines.engine.stats().num_steps
        state = made.run(engines.engine)
        steps = engines.engine.stats().num_steps - before

    assert steps == 4 + 3 + 2
    assert sum(call.usage.num_output_tokens for call in state.calls) == 4 + 3 + 2


def test_a_run_past_its_deadline_holds_nothing_after_the_step_that_runs() -> None:
    with rig() as engines:
        gate = engines.hold_steps()
        with pytest.raises(ProgramError) as caught:
            alternates.with_limits(deadline_s=0.05).run(engines.engine)
        gate.open()
        engines.check_nothing_is_held()

        assert isinstance(caught.value.cause, DeadlineExceeded)
        assert engines.engine.stats().num_steps <= 1
