"""Pages of mapped files: what is given up comes back as it was, and what is our own is kept."""

import ctypes
import mmap
import sys
from pathlib import Path

import pytest
import torch

from umbel.runtime import mapped_files

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SIZE = 4 << 20
_libc = ctypes.CDLL(None)
_libc.mprotect.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)


def make_file(folder: Path) -> Path:
    path = folder / "pages"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    return path


def private_mapping(path: Path) -> tuple[mmap.mmap, int]:
    """Private and writable, with its address."""
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return mapping, ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def mapped_bytes(address: int) -> int:
    """Resident bytes of the mapping at `address`."""
    found = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{address:x}-"):
            found = True
        elif found and line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no such mapping")


@linux_only
def test_pages_that_were_read_are_unmapped_and_read_the_same_again(tmp_path: Path) -> None:
    path = make_file(tmp_path)
    mapping, address = private_mapping(path)
    assert _libc.mprotect(address, SIZE, mmap.PROT_READ) == 0
    assert bytes(mapping) == path.read_bytes()
    assert mapped_bytes(address) == SIZE

    num_bytes = mapped_files.unmap_read_only()

    assert num_bytes >= SIZE
    assert mapped_bytes(address) == 0
    assert bytes(mapping) == path.read_bytes()


@linux_only
def test_a_mapping_with_a_page_that_was_written_keeps_all_of_it(tmp_path: Path) -> None:
    mapping, address = private_mapping(make_file(tmp_path))
    mapping[SIZE // 2] = 77  # as the loader writes into what it relocates, and protects it then
    written = bytes(mapping)
    assert _libc.mprotect(address, SIZE, mmap.PROT_READ) == 0

    mapped_files.unmap_read_only()

    assert mapped_bytes(address) == SIZE
    assert bytes(mapping) == written


@linux_only
def test_what_may_be_written_is_left_alone(tmp_path: Path) -> None:
    mapping, address = private_mapping(make_file(tmp_path))
    assert len(bytes(mapping)) == SIZE

    mapped_files.unmap_read_only()

    assert mapped_bytes(address) == SIZE


@linux_only
def test_torch_computes_as_before() -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    before = x @ x, x.softmax(1), x.bfloat16() @ x.bfloat16()

    assert mapped_files.unmap_read_only() > 0

    after = x @ x, x.softmax(1), x.bfloat16() @ x.bfloat16()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
