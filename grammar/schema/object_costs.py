"""What the rest of an object costs at least, where its properties do not depend on each other.

The properties that must come are known; of the others the cheapest make up the number. Declared
ones come in order of declaration, so any set of them can come.
"""

from itertools import accumulate

from umbel.grammar.pushdown.leaves import literal_leaf
from umbel.grammar.pushdown.rules import UNREACHABLE, Measure
from umbel.grammar.schema.object_plan import ObjectPlan, Progress
from umbel.grammar.values.literals import spell_text


def cheapest_rest(plan: ObjectPlan, progress: Progress, measure: Measure) -> int:
    """From in front of a name, behind its opening quote, to the end of the object: at least one
    property. `plan` has no conditions (`some`, `implies`).
    """
    spacing = plan.lowering.spacing
    colon, comma = measure.leaf(spacing.colon), measure.leaf(spacing.object_after.next)
    required: list[int] = []
    optional: list[int] = []
    for index, name in enumerate(plan.names):
        if not plan.is_gone(progress, name):
            (required if plan.required[index] else optional).append(index)
    total = sum(_declared_cost(plan, index, measure) + colon + comma for index in required)
    num_more = max(plan.low - progress.size - len(required), 0 if required else 1)
    if num_more:
        declared = sorted(_declared_cost(plan, i, measure) + colon + comma for i in optional)
        extra = [cost + colon + comma for cost in _extra_costs(plan, progress, num_more, measure)]
        total += _cheapest(declared, extra, num_more)
    return min(total - comma + measure.leaf(spacing.object_after.end), UNREACHABLE)


def _cheapest(optional: list[int], extra: list[int], count: int) -> int:
    """The least sum of so many costs, the first ones of both lists."""
    sums = [list(accumulate(costs, initial=0)) for costs in (optional, extra)]
    pairs = (
        (count - num_extra, num_extra)
        for num_extra in range(min(count, len(extra)) + 1)
        if count - num_extra <= len(optional)
    )
    return min((sums[0][a] + sums[1][b] for a, b in pairs), default=UNREACHABLE)


def _declared_cost(plan: ObjectPlan, index: int, measure: Measure) -> int:
    name = measure.leaf(plan.leaves.single(index))
    return name + measure.state(plan.lowering.state(plan.slots[index].term))


def _extra_costs(plan: ObjectPlan, progress: Progress, count: int, measure: Measure) -> list[int]:
    """Name and value of the next undeclared properties, one after the other; fewer if names run
    out.
    """
    found: list[int] = []
    values = [measure.state(plan.lowering.state(slot.term)) for _, slot in plan.kinds]
    while len(found) < count:
        best = UNREACHABLE
        for kind, value in enumerate(values):
            if plan.has_free_name(kind, progress.extras):
                # Which of its witnesses are used is not known: the most expensive one will do.
                texts = plan.witnesses(kind, progress.extras)
                names = (measure.leaf(literal_leaf(spell_text(text)[1:])) for text in texts)
                best = min(best, value + max(names, default=UNREACHABLE))
        if best >= UNREACHABLE:
            break
        found.append(best)
        progress = plan.after_extra(progress, None, ())
    return found
