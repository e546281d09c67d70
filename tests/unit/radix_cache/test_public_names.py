"""The public surface of the package: sorted, complete, and free of tensor libraries."""

import subprocess
import sys

import umbel.radix_cache as package


def test_all_is_sorted_and_every_name_exists() -> None:
    names = package.__all__

    assert names == sorted(names)
    assert [name for name in names if not hasattr(package, name)] == []


def test_importing_the_package_imports_no_tensor_library() -> None:
    code = "import sys, umbel.radix_cache; print({'torch', 'numpy'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"
