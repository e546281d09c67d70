"""Constant text becomes tokens ahead of the run, and neighbours become one node.

Each text keeps the tokens it would have had by itself, so the model sees what an eager run shows
it: joined texts are not tokenized anew.
"""

from collections.abc import Callable, Sequence

import msgspec

from umbel.frontend_dsl.graph.nodes import Block, Graph, Say, blocks_of, with_blocks

Encode = Callable[[str], Sequence[int]]


def tokenized(graph: Graph, encode: Encode) -> tuple[Graph, str]:
    """`graph` for the tokenizer of `encode`."""
    counts = [0, 0, 0]  # texts, tokens, nodes that went
    body = _block(graph.body, encode, counts)
    message = (
        f"{counts[0]} constant texts are {counts[1]} tokens, made once; "
        f"{counts[2]} were joined to their neighbours"
    )
    return msgspec.structs.replace(graph, body=body), message


def _block(block: Block, encode: Encode, counts: list[int]) -> Block:
    out: list[Say] = []
    for node in block:
        inner = [_block(body, encode, counts) for body in blocks_of(node)]
        node = with_blocks(node, inner)
        if isinstance(node, Say) and all(isinstance(part, str) for part in node.parts):
            text = "".join(str(part) for part in node.parts)
            token_ids = tuple(encode(text))
            counts[0] += 1
            counts[1] += len(token_ids)
            last = out[-1] if out else None
            if isinstance(last, Say) and last.branch == node.branch and last.token_ids is not None:
                counts[2] += 1
                out[-1] = msgspec.structs.replace(
                    last,
                    parts=(str(last.parts[0]) + text,),
                    token_ids=(*last.token_ids, *token_ids),
                )
                continue
            node = msgspec.structs.replace(node, parts=(text,), token_ids=token_ids)
        out.append(node)  # type: ignore[arg-type]  # mypy takes the list for one of texts only
    return tuple(out)
