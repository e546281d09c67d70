"""Choosing tokens from logits under packed masks, in two launches, without sorting the vocabulary.

The first reads the logits once, as tiles: the maximum, its token and the sum of exponentials of
each. The second, one program a row, picks: the best tile's token, or a tile and then a token by
the inverse of the cumulative distribution of one uniform number. Filters become a threshold, found
by searching the ordered integers that floats are; tiles whose maximum is below are not read.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NEGATIVE = tl.constexpr(float("-inf"))
NO_TOKEN = tl.constexpr(2147483647)
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _order(x):
    """float32 -> int64 within int32's range, in the same order. In 64 bits so that the difference
    of two does not wrap."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _value(order):
    bits = order.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _load_tile(LOGITS, MASK, first, num_tokens, has_mask, WORDS: tl.constexpr):
    """[WORDS, 32] logits of the tokens from `first` on, -inf where they are not allowed; and the
    tokens. MASK is the row's; a word is loaded once for its 32 tokens, and the loads of logits have
    no mask by token, which would break them into single elements."""
    word_at = tl.arange(0, WORDS)
    bit_at = tl.arange(0, 32)
    token = first + word_at[:, None] * 32 + bit_at[None, :]
    x = tl.load(LOGITS + token, mask=token < num_tokens, other=NEGATIVE).to(tl.float32)
    in_range = first + word_at * 32 < num_tokens
    word = tl.load(MASK + first // 32 + word_at, mask=in_range & has_mask, other=-1)
    x = tl.where(((word[:, None] >> bit_at[None, :]) & 1) != 0, x, NEGATIVE)
    return x, token


@triton.jit
def tile_statistics_kernel(
    LOGITS, MASKS, MASK_ROWS, TEMPERATURES, TILE_MAX, TILE_TOKEN, TILE_MASS,
    stride_logits, stride_masks, num_tokens, WORDS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles of 32 * WORDS tokens). Reads each logit once, or only the mask of a tile in
    which nothing is allowed. A NaN or infinite logit makes its tile's maximum infinite."""
    row = tl.program_id(0)
    tile = tl.program_id(1)
    at = row * tl.num_programs(1) + tile
    first = tile * WORDS * 32
    mask_row = tl.load(MASK_ROWS + row)
    has_mask = mask_row >= 0
    MASKS += tl.maximum(mask_row, 0).to(tl.int64) * stride_masks
    LOGITS += row.to(tl.int64) * stride_logits
    words = first // 32 + tl.arange(0, WORDS)
    word = tl.load(MASKS + words, mask=(words * 32 < num_tokens) & has_mask, other=-1)
    best = NEGATIVE
    best_token = NO_TOKEN
    mass = 0.0
    if tl.max((word != 0).to(tl.int32), 0) > 0:
        temperature = tl.load(TEMPERATURES + row)
        inverse = 1.0 / tl.where(temperature > 0.0, temperature, 1.0)
        x, token = _load_tile(LOGITS, MASKS, first, num_tokens, has_mask, WORDS)
        is_bad = tl.max(tl.max((x != x).to(tl.int32), 1), 0) > 0
        x = tl.where(x != x, NEGATIVE, x)
        best = tl.max(tl.max(x, 1), 0)
        best_token = tl.min(tl.min(tl.where(x == best, token, NO_TOKEN), 1), 0)
        finite = tl.where((best == NEGATIVE) | (best == float("inf")), 0.0, best)
        weight = tl.exp2((x - finite) * (inverse * LOG2E))
        mass = tl.sum(tl.sum(tl.where(x == NEGATIVE, 0.0, weight), 1), 0)
        best = tl.where(is_bad, float("inf"), best)
    tl.store(TILE_MAX + at, best)
    tl.store(TILE_TOKEN + at, best_token)
    tl.store(TILE_MASS + at, mass)


@triton.jit
def _search(
    LOGITS, MASK, TILE_MAX, num_tokens, num_tiles, has_mask, low, high, goal, top, inverse,
    IS_MASS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """The highest threshold at which the tokens not below it are `goal` or more: in number, or in
    mass relative to the maximum `top`; `low` if no threshold is. Each turn tries three."""
    while low < high:
        step = (high - low + 3) // 4
        first_try = low + step
        second_try = tl.minimum(low + 2 * step, high)
        third_try = tl.minimum(low + 3 * step, high)
        a = _value(first_try)
        b = _value(second_try)
        c = _value(third_try)
        above_a = tl.zeros((WORDS, 32), tl.float32)
        above_b = tl.zeros((WORDS, 32), tl.float32)
        above_c = tl.zeros((WORDS, 32), tl.float32)
        for tile in range(num_tiles):
            if tl.load(TILE_MAX + tile) >= a:
                x, _ = _load_tile(LOGITS, MASK, tile * WORDS * 32, num_tokens, has_mask, WORDS)
                weight = tl.full((WORDS, 32), 1.0, tl.float32)
                if IS_MASS:
                    weight = tl.exp2((x - top) * (inverse * LOG2E))
                above_a += tl.where(x >= a, weight, 0.0)
                above_b += tl.where(x >= b, weight, 0.0)
                above_c += tl.where(x >= c, weight, 0.0)
        reaches_a = tl.sum(tl.sum(above_a, 1), 0) >= goal
        reaches_b = tl.sum(tl.sum(above_b, 1), 0) >= goal
        reaches_c = tl.sum(tl.sum(above_c, 1), 0) >= goal
        low = tl.where(
            reaches_c,
            third_try,
            tl.where(reaches_b, second_try, tl.where(reaches_a, first_try, low)),
        )
        high = tl.where(
            reaches_c,
            high,
            tl.where(reaches_b, third_try - 1, tl.where(reaches_a, second_try - 1, first_try - 1)),
        )
        high = tl.maximum(high, low)
    return low


@triton.jit
def _mass_above(
    LOGITS, MASK, TILE_MAX, num_tokens, num_tiles, has_mask, threshold, top, inverse,
    WORDS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """[TILES] mass of each tile's tokens not below the threshold."""
    tiles = tl.arange(0, TILES)
    mass = tl.zeros((TILES,), tl.float32)
    for tile in range(num_tiles):
        if tl.load(TILE_MAX + tile) >= threshold:
            x, _ = _load_tile(LOGITS, MASK, tile * WORDS * 32, num_tokens, has_mask, WORDS)
            weight = tl.exp2((x - top) * (inverse * LOG2E))
            total = tl.sum(tl.sum(tl.where(x >= threshold, weight, 0.0), 1), 0)
            mass = tl.where(tiles == tile, total, mass)
    return mass


@triton.jit
def pick_tokens_kernel(
    LOGITS, MASKS, MASK_ROWS, TEMPERATURES, UNIFORMS, TOP_K, TOP_P, MIN_P,
    TILE_MAX, TILE_TOKEN, TILE_MASS, TOKENS, THRESHOLDS,
    stride_logits, stride_masks, num_tokens, num_tiles,
    WORDS: tl.constexpr, TILES: tl.constexpr, HAS_FILTERS: tl.constexpr,
):  # fmt: skip
    """Grid (rows). A greedy row reads its tiles' statistics, a drawn one also one tile of logits; a
    filtered one reads the tiles that reach its threshold about 16 times per filter, from the L2
    cache. Writes -1 where no allowed logit is finite or one is not a number."""
    row = tl.program_id(0)
    tiles = tl.arange(0, TILES)
    at = row * num_tiles + tiles
    ok = tiles < num_tiles
    tile_max = tl.load(TILE_MAX + at, mask=ok, other=NEGATIVE)
    tile_token = tl.load(TILE_TOKEN + at, mask=ok, other=NO_TOKEN)
    tile_mass = tl.load(TILE_MASS + at, mask=ok, other=0.0)
    top = tl.max(tile_max, 0)
    chosen = tl.min(tl.where(tile_max == top, tile_token, NO_TOKEN), 0)
    threshold = LOWEST + 0.0
    temperature = tl.load(TEMPERATURES + row)
    is_finite = (top != NEGATIVE) & (top != float("inf"))
    if is_finite & (temperature > 0.0):
        inverse = 1.0 / temperature
        mask_row = tl.load(MASK_ROWS + row)
        has_mask = mask_row >= 0
        MASKS += tl.maximum(mask_row, 0).to(tl.int64) * stride_masks
        LOGITS += row.to(tl.int64) * stride_logits
        TILE_MAX += row * num_tiles
        mass = tile_mass * tl.exp2((tile_max - top) * (inverse * LOG2E))
        if HAS_FILTERS:
            top_k = tl.load(TOP_K + row)
            top_p = tl.load(TOP_P + row)
            min_p = tl.load(MIN_P + row)
            is_filtered = (top_k > 0) | (top_p < 1.0) | (min_p > 0.0)
            if is_filtered:
                lowest = _order(threshold)
                high = _order(top)
                if top_k > 0:
                    lowest = _search(
                        LOGITS, MASKS, TILE_MAX, num_tokens, num_tiles, has_mask, lowest, high,
                        top_k.to(tl.float32), top, inverse, False, WORDS,
                    )  # fmt: skip
                if top_p < 1.0:
                    total = tl.sum(mass, 0)
                    if top_k > 0:
                        total = tl.sum(
                            _mass_above(
                                LOGITS, MASKS, TILE_MAX, num_tokens, num_tiles, has_mask,
                                _value(lowest), top, inverse, WORDS, TILES,
                            ),
                            0,
                        )  # fmt: skip
                    lowest = _search(
                        LOGITS, MASKS, TILE_MAX, num_tokens, num_tiles, has_mask, lowest, high,
                        total * top_p, top, inverse, True, WORDS,
                    )  # fmt: skip
                threshold = _value(lowest)
                if min_p > 0.0:
                    threshold = tl.maximum(threshold, top + temperature * tl.log(min_p))
                mass = _mass_above(
                    LOGITS, MASKS, TILE_MAX, num_tokens, num_tiles, has_mask, threshold, top,
                    inverse, WORDS, TILES,
                )  # fmt: skip
        goal = tl.load(UNIFORMS + row) * tl.sum(mass, 0)
        before = tl.cumsum(mass, 0) - mass
        tile = tl.max(tl.where((before <= goal) & (mass > 0.0), tiles, 0), 0)
        below = tl.sum(tl.where(tiles < tile, mass, 0.0), 0)
        x, token = _load_tile(LOGITS, MASKS, tile * WORDS * 32, num_tokens, has_mask, WORDS)
        weight = tl.where(x >= threshold, tl.exp2((x - top) * (inverse * LOG2E)), 0.0)
        weight = tl.reshape(weight, (WORDS * 32,))
        token = tl.reshape(token, (WORDS * 32,))
        before_token = below + tl.cumsum(weight, 0) - weight
        drawn = tl.max(tl.where((before_token <= goal) & (weight > 0.0), token, -1), 0)
        # Rounding can put the goal before a tile's first token; that is where it belongs.
        first = tl.min(tl.where(weight > 0.0, token, NO_TOKEN), 0)
        chosen = tl.where(drawn >= 0, drawn, first)
    tl.store(TOKENS + row, tl.where(is_finite, chosen, -1))
    tl.store(THRESHOLDS + row, threshold)


@triton.jit
def edit_logits_kernel(
    LOGITS, ROW_BEGIN, TOKENS, BIASES, COUNTS, FLAGS, REPETITION, FREQUENCY, PRESENCE,
    stride_logits, num_tokens, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows). Each row's tokens are distinct. Touches only the edited logits, 20 bytes of edit
    for each."""
    row = tl.program_id(0)
    begin = tl.load(ROW_BEGIN + row)
    end = tl.load(ROW_BEGIN + row + 1)
    repetition = tl.load(REPETITION + row)
    frequency = tl.load(FREQUENCY + row)
    presence = tl.load(PRESENCE + row)
    LOGITS += row.to(tl.int64) * stride_logits
    for first in range(begin, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        ok = at < end
        token = tl.load(TOKENS + at, mask=ok, other=0)
        ok = ok & (token < num_tokens)
        x = tl.load(LOGITS + token, mask=ok, other=0.0).to(tl.float32)
        x += tl.load(BIASES + at, mask=ok, other=0.0)
        count = tl.load(COUNTS + at, mask=ok, other=0).to(tl.float32)
        flags = tl.load(FLAGS + at, mask=ok, other=0)
        repeated = tl.where(x > 0.0, x / repetition, x * repetition)
        x = tl.where((flags & 1) != 0, repeated, x)
        x -= tl.where(count > 0.0, count * frequency + presence, 0.0)
        x = tl.where((flags & 2) != 0, NEGATIVE, x)
        tl.store(LOGITS + token, x.to(LOGITS.dtype.element_ty), mask=ok)
