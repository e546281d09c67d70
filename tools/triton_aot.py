"""Compiles Triton kernels for a GPU on a machine without one, and reads what came out.

The wheel of Triton carries the whole tool chain (ptxas, cuobjdump); neither a driver nor torch is
used. Called by `tools/kernel_report.py`, in a process of its own: while Triton's interpreter is on,
nothing can be compiled.
"""

import contextlib
import io
import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# Whole SASS opcodes of each group.
GROUPS = {
    "wgmma": r"[HQI]GMMA\b.*",  # tensor-core product of a warp group, sm_90
    "mma": r"[HQI]MMA\b.*",  # of a warp
    "async16": r"LDGSTS\b.*\.128\b.*",  # asynchronous copy to shared memory, 16 bytes a thread
    "async8": r"LDGSTS\b.*\.64\b.*",
    "async4": r"LDGSTS\b(?!.*\.(64|128)\b).*",
    "load16": r"LDG\b.*\.128\b.*",
    "load8": r"LDG\b.*\.64\b.*",
    "load4": r"LDG\b(?!.*\.(64|128|[US]8|[US]16)\b).*",
    "load_narrow": r"LDG\b.*\.[US](8|16)\b.*",
    "store16": r"STG\b.*\.128\b.*",
    "store8": r"STG\b.*\.64\b.*",
    "store4": r"STG\b(?!.*\.(64|128|[US]8|[US]16)\b).*",
    "store_narrow": r"STG\b.*\.[US](8|16)\b.*",
    "local": r"(LDL|STL)\b.*",  # spills and stack
    "atomic": r"(ATOM|ATOMG|RED|REDG|ATOMS)\b.*",
}
_GROUPS = {name: re.compile(pattern) for name, pattern in GROUPS.items()}
_INSTRUCTION = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);"
)


@dataclass(frozen=True, slots=True)
class Processor:
    """What one multiprocessor has for its resident blocks."""

    registers: int
    shared_bytes: int
    reserved_bytes: int  # of shared memory, per block
    warps: int
    blocks: int


PROCESSORS = {90: Processor(65536, 233472, 1024, 64, 32)}  # H100 and H200


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """A kernel with the arguments to compile it for."""

    name: str
    kernel: Any  # a triton JITFunction
    signature: dict[str, str]  # types of all arguments but constants; `:16` for divisible by 16
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3


@dataclass(slots=True, kw_only=True)
class Report:
    """One compiled kernel. `pending` is the least number of groups of asynchronous copies that a
    wait inside a loop leaves in flight; None: no loop waits for any. `turn` is the number of
    instructions in the longest loop that has none inside."""

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    blocks_per_processor: int
    pending: int | None
    num_instructions: int
    turn: int
    groups: dict[str, int] = field(default_factory=dict)
    loop_groups: dict[str, int] = field(default_factory=dict)


def compile_case(case: KernelCase, arch: int = 90) -> Report:
    """Compile for compute capability `arch`. Raises what the compiler raises."""
    import triton
    from triton.backends.compiler import GPUTarget

    log = io.StringIO()
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    with tempfile.TemporaryDirectory() as cache, contextlib.redirect_stdout(log):
        os.environ.update(
            TRITON_CACHE_DIR=cache, TRITON_DUMP_PTXAS_LOG="1", TRITON_ALWAYS_COMPILE="1"
        )
        compiled = triton.compile(
            _source(case), target=GPUTarget("cuda", arch, 32), options=options
        )
        cubin = compiled.asm["cubin"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        sass = _cuobjdump("-sass", file.name)
        usage = _cuobjdump("--dump-resource-usage", file.name)
    code = [
        (int(match[1], 16), match[2], match[3].strip())
        for match in map(_INSTRUCTION.match, sass.splitlines())
        if match
    ]
    loops = _loops(code)
    inside = [one for one in code if any(low <= one[0] <= high for low, high in loops)]
    registers = _number(r"REG:(\d+)", usage)
    shared = int(compiled.metadata.shared) + _number(r"SHARED:(\d+)", usage)
    spills = _number(r"(\d+) bytes spill stores", log.getvalue())
    spills += _number(r"(\d+) bytes spill loads", log.getvalue())
    return Report(
        name=case.name,
        registers=registers,
        spill_bytes=spills,
        shared_bytes=shared,
        blocks_per_processor=_resident(PROCESSORS[arch], registers, shared, case.num_warps),
        pending=_pending(code, loops),
        num_instructions=len(code),
        turn=_turn(loops),
        groups=_count(code),
        loop_groups=_count(inside),
    )


def _source(case: KernelCase) -> Any:
    from triton.compiler import ASTSource

    names = case.kernel.arg_names
    given = {**case.signature, **case.constants}
    if set(names) != set(given):
        raise ValueError(
            f"{case.name}: the kernel's arguments are {names}; got {sorted(given)} "
            f"(differing: {sorted(set(names) ^ set(given))})"
        )
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for idx, name in enumerate(names):
        kind, _, hint = case.signature.get(name, "constexpr").partition(":")
        signature[name] = kind
        if hint:
            attributes[(idx,)] = [["tt.divisibility", int(hint)]]
    return ASTSource(
        fn=case.kernel, signature=signature, constexprs=case.constants, attrs=attributes
    )


def _cuobjdump(option: str, path: str) -> str:
    import triton

    command = [triton.knobs.nvidia.cuobjdump.path, option, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"the compiler's report has no {pattern!r}:\n{text}")
    return int(match[1])


def _loops(code: list[tuple[int, str, str]]) -> list[tuple[int, int]]:
    """First and last address of each loop, by backward branches."""
    loops: dict[int, int] = {}
    for address, opcode, operands in code:
        target = re.search(r"(0x[0-9a-f]+)\s*$", operands) if opcode.startswith("BRA") else None
        if target and int(target[1], 16) < address:
            low = int(target[1], 16)
            loops[low] = max(loops.get(low, 0), address)
    return list(loops.items())


def _turn(loops: list[tuple[int, int]]) -> int:
    """An instruction is 16 bytes long."""
    inner = [
        (low, high)
        for low, high in loops
        if not any((low, high) != other and low <= other[0] <= other[1] <= high for other in loops)
    ]
    return max(((high - low) // 16 + 1 for low, high in inner), default=0)


def _pending(code: list[tuple[int, str, str]], loops: list[tuple[int, int]]) -> int | None:
    waits: list[int] = []
    for low, high in loops:
        body = [one for one in code if low <= one[0] <= high]
        if any(opcode.startswith("LDGSTS") for _, opcode, _ in body):
            found = [
                re.match(r"SB0, (0x[0-9a-f]+)", operands)
                for _, opcode, operands in body
                if opcode == "DEPBAR.LE"
            ]
            waits += [int(match[1], 16) for match in found if match]
    return min(waits, default=None)


def _count(code: list[tuple[int, str, str]]) -> dict[str, int]:
    counts = Counter(
        name
        for _, opcode, _ in code
        for name, pattern in _GROUPS.items()
        if pattern.fullmatch(opcode)
    )
    return dict(counts)


def _resident(processor: Processor, registers: int, shared_bytes: int, num_warps: int) -> int:
    per_warp = max(256, -(-registers * 32 // 256) * 256)
    return min(
        processor.registers // per_warp // num_warps,
        processor.shared_bytes // (shared_bytes + processor.reserved_bytes),
        processor.warps // num_warps,
        processor.blocks,
    )
