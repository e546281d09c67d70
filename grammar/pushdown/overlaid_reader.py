"""Reading with an automaton most of whose texts are read as a simpler one reads them.

Keywords among names: away from the keywords all that the automaton does is what names do, whose
readings all grammars share. So its reading is that of names, corrected along the few tokens that
run along keywords. `DfaReader` without a base is the plain twin.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa
from umbel.grammar.pushdown.dfa_reader import DfaReader
from umbel.grammar.pushdown.leaves import DfaLeaf
from umbel.grammar.pushdown.reading import EMPTY_READING, Exits, Reading
from umbel.grammar.pushdown.residual import NodeArray, Residual
from umbel.grammar.pushdown.walk import walk

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_UNKNOWN = -2
_NO_LIMIT = 10**9


class OverlaidReader(DfaReader):
    """See `reading.Reader`. base: the reader of `leaf.base`, all of whose texts are texts of the
    leaf, too; otherwise it is not made use of.
    """

    def __init__(self, leaf: DfaLeaf, base: DfaReader, vocabulary: "Vocabulary") -> None:
        super().__init__(leaf, vocabulary)
        assert leaf.base is not None
        self._base = base
        self._overlay = _Overlay.of(leaf, leaf.base)

    def _read(self, state: int, residual: Residual) -> Reading:
        overlay = self._overlay
        if overlay is None or not residual.is_flat:
            return super()._read(state, residual)
        base_state = overlay.base_state[state]
        if base_state == overlay.base_dead:
            return super()._read(state, residual)
        found = self._base.read(base_state, residual)
        if overlay.is_alike[state]:
            exits = tuple((overlay.tag, rest) for _, rest in found.exits)
            return Reading(found.row, found.ids, exits, found.removed)
        return self._corrected(overlay, found, state, residual)

    def _corrected(
        self, overlay: "_Overlay", found: Reading, state: int, residual: Residual
    ) -> Reading:
        base, space = self._base, residual.space
        added: list[int] = []
        removed: list[int] = []
        ours: list[tuple[int, int]] = []  # nodes where exits differ: our states there
        theirs: list[tuple[int, int]] = []  # and the states of the base
        for target, node in walk(residual, state, overlay.unlike, _NO_LIMIT) or ():
            under = overlay.base_state[target]
            if space.token_at[node] >= 0:
                is_live = self.is_live(target)
                was_live = under != overlay.base_dead and base.is_live(under)
                if is_live != was_live:
                    (added if is_live else removed).extend(space.ids_at(node))
            if space.child_count[node] and not overlay.has_same_exits[target]:
                if self.tags[target] >= 0:
                    ours.append((target, node))
                if under != overlay.base_dead and base.tags[under] >= 0:
                    theirs.append((under, node))
        at_once = self._exit_at_once(state, residual)
        skipped = len(base._exit_at_once(overlay.base_state[state], residual))
        later = self._later_exits(overlay, found.exits[skipped:], ours, theirs)
        ids = found.ids
        if removed and found.row is None:
            ids, removed = tuple(i for i in ids if i not in removed), []
        if not (added or removed or ids or found.row is not None or at_once or later):
            return EMPTY_READING
        return Reading(found.row, (*ids, *added), at_once + later, (*found.removed, *removed))

    def _later_exits(
        self,
        overlay: "_Overlay",
        exits: Exits,
        ours: list[tuple[int, int]],
        theirs: list[tuple[int, int]],
    ) -> Exits:
        space = self._vocabulary.readings
        parts: dict[int, list[NodeArray]] = {}
        if exits:
            ((_, rest),) = exits
            nodes = rest.nodes
            if theirs:
                gone, _ = self._base.outside(space, theirs)
                nodes = nodes[~np.isin(nodes, gone, assume_unique=True)]
                if not len(ours) and len(nodes) == len(rest.nodes):
                    return ((overlay.tag, rest),)
            elif not ours:
                return ((overlay.tag, rest),)
            parts[overlay.tag] = [nodes]
        if ours:
            nodes, tags = self.outside(space, ours)
            for tag in sorted(set(tags.tolist())):
                parts.setdefault(tag, []).append(nodes[tags == tag])
        joined = [(tag, np.sort(np.concatenate(found))) for tag, found in parts.items()]
        return tuple((tag, space.of_nodes(nodes)) for tag, nodes in joined if len(nodes))


class _Overlay:
    """Which states of an automaton stand for which of the base, and where both do the same.

    base_state: by state, `base_dead` where only our automaton goes on. is_alike: from here on both
    read the same texts, all with `tag`. has_same_exits: the same texts end here, and the same bytes
    go on.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.int32],
        base_state: npt.NDArray[np.int64],
        base_dead: int,
        tag: int,
        is_alike: npt.NDArray[np.bool_],
        has_same_exits: npt.NDArray[np.bool_],
    ) -> None:
        self._rows = rows
        self._differs = ~is_alike
        self._unlike: dict[int, dict[int, int]] = {}
        self.base_state: list[int] = base_state.tolist()
        self.base_dead = base_dead
        self.tag = tag
        self.is_alike: list[bool] = is_alike.tolist()
        self.has_same_exits: list[bool] = has_same_exits.tolist()

    def unlike(self, state: int) -> dict[int, int]:
        """byte -> next state, of the bytes that lead to states that are not alike."""
        found = self._unlike.get(state)
        if found is None:
            row = self._rows[state]
            values = np.flatnonzero(self._differs[row])
            found = dict(zip(values.tolist(), row[values].tolist(), strict=True))
            self._unlike[state] = found
        return found

    @staticmethod
    def of(leaf: DfaLeaf, base: DfaLeaf) -> "_Overlay | None":
        """None: some text of the base is none of the leaf, or states stand for several ones."""
        rows, under = _rows_of(leaf.dfa), _rows_of(base.dfa)
        dead, base_dead = leaf.dfa.dead, base.dfa.dead
        base_state = np.full(dead + 1, _UNKNOWN, np.int64)
        base_state[0] = 0
        fresh = np.zeros(1, np.int64)
        while len(fresh):
            targets = rows[fresh].reshape(-1).astype(np.int64)
            states = under[base_state[fresh]].reshape(-1)
            lost = targets == dead
            if (states[lost] != base_dead).any():
                return None
            pairs = np.unique(targets[~lost] * (base_dead + 1) + states[~lost])
            targets, states = np.divmod(pairs, base_dead + 1)
            if (targets[1:] == targets[:-1]).any():
                return None
            known = base_state[targets]
            if ((known != _UNKNOWN) & (known != states)).any():
                return None
            fresh = targets[known == _UNKNOWN]
            base_state[fresh] = states[known == _UNKNOWN]
        base_state[base_state == _UNKNOWN] = base_dead  # also for the dead state itself
        tagged = (base.tags[base_state] >= 0) & (leaf.tags >= 0)
        if not tagged.any():
            return None
        tag = int(np.bincount(leaf.tags[tagged]).argmax())
        both_end = (leaf.tags == tag) == (base.tags[base_state] >= 0)
        both_end &= (leaf.tags == tag) | (leaf.tags < 0)
        same_bytes = ((rows == dead) == (under[base_state] == base_dead)).all(axis=1)
        alike = both_end & same_bytes & (base_state != base_dead)
        alike[dead] = True
        has_same_exits = both_end & same_bytes
        while True:
            narrowed = alike & alike[rows].all(axis=1)
            if (narrowed == alike).all():
                break
            alike = narrowed
        return _Overlay(rows, base_state, base_dead, tag, alike, has_same_exits)


def _rows_of(dfa: ByteDfa) -> npt.NDArray[np.int32]:
    return dfa.table[:, dfa.byte_class]
