"""The vocabulary and its trie: every token is found at its bytes, and nothing else is."""

import random

import pytest
from unit.grammar.oracles import gappy_vocabulary, spiky_vocabulary, trained_vocabulary

import umbel.grammar
from umbel.grammar import Vocabulary
from umbel.grammar.trie import TokenTrie


def _ids_at(trie: TokenTrie, text: bytes) -> list[int]:
    node = trie.find(text)
    if node is None:
        return []
    return trie.token_ids[trie.token_start[node] : trie.token_start[node + 1]].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_the_trie_holds_exactly_the_given_tokens(seed: int) -> None:
    rng = random.Random(seed)
    tokens: dict[bytes, list[int]] = {}
    for token_id in range(200):
        text = bytes(rng.choice([0, 1, 97, 255]) for _ in range(rng.randint(1, 6)))
        tokens.setdefault(text, []).append(token_id)
    trie = TokenTrie(tokens)
    prefixes = {text[:end] for text in tokens for end in range(len(text) + 1)}

    assert trie.num_nodes == len(prefixes)
    for text in prefixes:
        assert _ids_at(trie, text) == tokens.get(text, [])
        assert trie.find(text + b"zz") is None


def test_children_are_contiguous_and_sorted() -> None:
    trie = trained_vocabulary().trie

    for node in range(trie.num_nodes):
        children = range(trie.child_start[node], trie.child_start[node] + trie.child_count[node])
        values = [int(trie.byte[child]) for child in children]
        assert values == sorted(set(values))
        assert all(trie.parent[child] == node for child in children)
        assert trie.num_below[node] == sum(1 + trie.num_below[child] for child in children)


def test_an_empty_vocabulary_has_an_empty_trie() -> None:
    trie = Vocabulary([None], [0], size=1).trie

    assert trie.num_nodes == 1
    assert trie.find(b"a") is None


def test_duplicate_tokens_share_a_node() -> None:
    vocabulary = spiky_vocabulary()

    assert vocabulary.ids_by_bytes[b"ab"] == [3, 4]
    assert _ids_at(vocabulary.trie, b"ab") == [3, 4]


def test_compound_atoms_are_the_tokens_that_others_cannot_spell() -> None:
    assert gappy_vocabulary().compound_atoms == [b"bc", b"ab", b"cb"]
    assert trained_vocabulary().compound_atoms == []


def test_a_size_below_the_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="size=1 is smaller than the 2 tokens"):
        Vocabulary([b"a", b"b"], [], size=1)


def test_an_eos_id_outside_the_logits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"eos_ids \[5\]"):
        Vocabulary([b"a"], [5], size=3)


def test_an_eos_id_may_lie_in_the_padding() -> None:
    assert Vocabulary([b"a"], [2], size=3).eos_ids == {2}


def test_the_key_depends_on_content_only() -> None:
    assert spiky_vocabulary().key == spiky_vocabulary().key
    assert Vocabulary([b"ab", b"c"], [], size=2).key != Vocabulary([b"a", b"bc"], [], size=2).key


def test_the_public_surface_is_sorted_and_complete() -> None:
    names = umbel.grammar.__all__

    assert names == sorted(names)
    assert all(hasattr(umbel.grammar, name) for name in names)
