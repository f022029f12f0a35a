"""Saved folders with digests: tensors and configuration, with the SHA-256 of each file.

A folder holds `model.safetensors`, `config.json` and sometimes `certificate.json`. Under "digests" the configuration
has the SHA-256 of each of them by its name; its own is that of all the rest of it. Loading compares the files with
them. That finds damage and edits; it does not prove who wrote the folder.

Where the configuration has "load_as", a dtype, the floating-point tensors of the file are loaded in it. It must hold
every value of theirs, so that a file may be narrower than the network without loss.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from convattn.errors import (
    ArgumentError,
    CertificateWarning,
    CheckpointError,
    UnsupportedModelError,
    WriteError,
    must_be,
)
from convattn.files import (
    AnyPath,
    as_path,
    new_file,
    read_whole,
    require_new_folder,
    write_atomically,
)
from convattn.record import Record
from convattn.wording import some

CONFIG, WEIGHTS, CERTIFICATE = "config.json", "model.safetensors", "certificate.json"
DIGESTS, LOAD_AS = "digests", "load_as"
KIND = "network"
"""What the configuration of a saved folder has under "kind"."""

_PAGES = ("README.md", "index.html")
"""Files for people that a saved network may hold."""

_HINT = "if it was edited on purpose, load it with verify=False"


def write_sealed(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    certificate: Record | None = None,
) -> None:
    """Writes tensors, the configuration that builds their network, and a certificate, with digests of all.

    Files of these names in the folder are replaced, the configuration last. Raises UnsupportedModelError if a tensor
    holds NaN or has a dtype that the format lacks, and WriteError if the files cannot be written.
    """
    _write_tensors(folder / WEIGHTS, _plain(tensors))
    digests = {WEIGHTS: file_sha256(folder / WEIGHTS)}
    if certificate is not None:
        digests[CERTIFICATE] = file_sha256(certificate.save(folder / CERTIFICATE))
    sealed = json.loads(json.dumps({**config, DIGESTS: digests}))
    digests[CONFIG] = _config_digest(sealed)
    write_atomically(folder / CONFIG, json.dumps({**sealed, DIGESTS: digests}, indent=2) + "\n")


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the contents of `config.json`, not verified; raises CheckpointError unless it is that of a network."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            reason = error.strerror
        raise CheckpointError(
            f"{folder} holds no saved network: {CONFIG} is not readable ({reason})"
        ) from None
    if not isinstance(config, dict) or config.get("kind") != KIND:
        hint = ""
        if isinstance(config, dict) and "model_type" in config:
            hint = f": a command takes one of transformers as hf:{folder}"
        raise CheckpointError(f"{folder / CONFIG} does not describe a network of convattn{hint}")
    return config


def may_replace(folder: AnyPath, *, overwrite: bool) -> bool:
    """Returns whether a saved folder is to be replaced; raises ArgumentError unless it is that, new or empty."""
    folder = as_path(folder)
    is_saved = _is_sealed(folder)
    if is_saved and not overwrite:
        raise ArgumentError(
            f"folder must be new or empty, but {str(folder)!r} holds a saved network:"
            " overwrite=True replaces it"
        )
    if not is_saved:
        may_be = "a saved network, " if overwrite else ""
        require_new_folder(folder, may_be=may_be)
    return is_saved


def _is_sealed(folder: Path) -> bool:
    """Returns whether a folder, not the current one, holds what `write_sealed` wrote, and pages at most beside it."""
    try:
        if DIGESTS not in read_config(folder):
            return False
    except CheckpointError:
        return False
    for file in folder.iterdir():
        if file.name not in (CONFIG, WEIGHTS, CERTIFICATE, *_PAGES) or not file.is_file():
            return False
    return not (folder.is_symlink() or folder.samefile("."))


def read_sealed(folder: Path, *, verify: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the configuration and the tensors that `write_sealed` wrote, after comparing all files with its digests.

    If another process replaces the folder meanwhile, they are all from before or all from after. With verify=False,
    changes are accepted. Raises CheckpointError, which names the file, if one is missing, damaged or not what was
    saved. Warns with CertificateWarning if the certificate says that the conversion failed.
    """
    config, tensors, verdict = read_whole(folder, partial(_read_files, folder, verify=verify))
    if verdict == "failed":
        message = f"the certificate in {folder} says that the conversion failed"
        warnings.warn(message, CertificateWarning, stacklevel=4)
    if LOAD_AS in config:
        tensors = _widened(tensors, config.pop(LOAD_AS), folder / CONFIG)
    config.pop(DIGESTS, None)
    return config, tensors


def _read_files(folder: Path, *, verify: bool) -> tuple[dict[str, Any], dict[str, Tensor], Any]:
    """Returns the configuration, the tensors and the verdict of the certificate, or None without one."""
    config = read_config(folder)
    try:
        tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"cannot read the weights in {folder}: {error}") from None
    if verify:
        _require_saved(folder, config)
    return config, tensors, _read_verdict(folder / CERTIFICATE)


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in lower-case hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_saved(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises CheckpointError if a file in a folder differs from what was saved, and names it."""
    digests = config.get(DIGESTS)
    if not isinstance(digests, dict):
        raise CheckpointError(
            f"{folder / CONFIG} has no digests, so changes cannot be found; {_HINT}"
        )
    if digests.get(CONFIG) != _config_digest(config):
        raise CheckpointError(f"{folder / CONFIG} is not what was saved; {_HINT}")
    for name in (WEIGHTS, CERTIFICATE):
        file, digest = folder / name, None
        try:
            if file.exists():
                digest = file_sha256(file)
        except OSError as error:
            raise CheckpointError(f"cannot read {file}: {error}") from None
        if digest != digests.get(name):
            state = "is missing" if digest is None else "is not what was saved"
            raise CheckpointError(f"{file} {state}; {_HINT}")


def _read_verdict(file: Path) -> Any:
    """Returns the verdict of a certificate, or None if there is no file; a damaged one raises CheckpointError."""
    if not file.exists():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))["verdict"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is not a certificate ({type(error).__name__}: {error})"
        ) from None


def _widened(tensors: Mapping[str, Tensor], name: object, file: Path) -> dict[str, Tensor]:
    """Copies tensors with the floating-point ones in the dtype of that name, which must hold every value of theirs."""
    dtype = getattr(torch, str(name), None)
    wide = dict(tensors)
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        if not isinstance(dtype, torch.dtype) or torch.promote_types(tensor.dtype, dtype) != dtype:
            expected = f"a dtype that holds every value of {key}"
            raise CheckpointError(f"{file}: {must_be(LOAD_AS, expected, name)}")
        wide[key] = tensor.to(dtype)
    return wide


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    with new_file(path) as file:
        try:
            save_file(tensors, file, metadata={"format": "pt"})
        except (KeyError, ValueError, TypeError) as error:
            raise UnsupportedModelError(f"{type(error).__name__}: {error}") from None
        except SafetensorError as error:
            raise WriteError(f"cannot write {path}: {error}") from None


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies tensors to the CPU, each to a memory of its own, as the format needs them.

    Raises UnsupportedModelError if tensors hold NaN, and names them.
    """
    plain, wrong = {}, []
    for name, tensor in tensors.items():
        values = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        plain[name] = values
        if tensor.is_floating_point() and tensor.element_size() == 1:
            values = values.float()  # torch has no isnan for floating-point numbers of 8 bits
        if values.isnan().any():
            wrong.append(name)
    if wrong:
        verb = "holds" if len(wrong) == 1 else "hold"
        raise UnsupportedModelError(f"{some(wrong)} {verb} NaN")
    return plain


def _config_digest(config: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a configuration and its digests, except this digest itself."""
    digests = {key: value for key, value in config[DIGESTS].items() if key != CONFIG}
    text = json.dumps({**config, DIGESTS: digests}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
