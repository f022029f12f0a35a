"""Saved folders with digests: tensors and configuration, with the SHA-256 of each.

A folder holds `model.safetensors`, `config.json` and sometimes `certificate.json`. Under "digests" the configuration
has the SHA-256 of every tensor (name, dtype, shape, bytes), of the certificate, and of all the rest of itself. Loading
compares the files with them. That finds damage and edits; it does not prove who wrote the folder.

Where the configuration has "load_as", a dtype, the floating-point tensors of the file are loaded in it. It must hold
every value of theirs, so that a file may be narrower than the network without loss.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from convattn.errors import (
    CertificateWarning,
    CheckpointError,
    UnsupportedModelError,
    WriteError,
    must_be,
)
from convattn.files import as_path, new_file, require_new_folder, write_atomically
from convattn.record import Record
from convattn.wording import some

CONFIG, WEIGHTS, CERTIFICATE = "config.json", "model.safetensors", "certificate.json"
DIGESTS, LOAD_AS = "digests", "load_as"

_HINT = "if it was edited on purpose, load it with verify=False (command: --no-verify)"
_LARGEST = 1 << 14
"""Size up to which an option of a network may exceed every size of its tensors, as that of its images does."""


def write_sealed(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    certificate: Record | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes tensors, the configuration that builds their network or layer, and a certificate, with digests of all.

    Files of these names in the folder are replaced, the configuration last. `metadata` is text for the head of the file
    of tensors, from which nothing is read. Raises UnsupportedModelError if a tensor holds NaN or has a dtype that the
    format lacks, and WriteError if the files cannot be written.
    """
    plain = _plain(tensors)
    _require_numbers(plain, UnsupportedModelError)
    digests = {"tensors": {name: tensor_digest(name, tensor) for name, tensor in plain.items()}}
    text = None if certificate is None else certificate.to_json()
    sealed = {
        **config,
        DIGESTS: {**digests, "certificate": None if text is None else _digest(text.encode())},
    }
    sealed[DIGESTS]["configuration"] = _config_digest(json.loads(json.dumps(sealed)))
    with new_file(folder / WEIGHTS) as file:
        try:
            save_file(plain, file, metadata={"format": "pt", **(metadata or {})})
        except (KeyError, ValueError, TypeError) as error:
            raise UnsupportedModelError(f"{type(error).__name__}: {error}") from None
        except SafetensorError as error:
            raise WriteError(f"cannot write {folder / WEIGHTS}: {error}") from None
    if text is not None:
        write_atomically(folder / CERTIFICATE, text)
    write_atomically(folder / CONFIG, json.dumps(sealed, indent=2) + "\n")


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the contents of `config.json`, not verified; raises CheckpointError unless it is a JSON object."""
    folder = as_path(folder)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        )
        raise CheckpointError(
            f"{folder} holds no saved network or layer: {CONFIG} is not readable ({reason})"
        ) from None
    if not isinstance(config, dict):
        raise CheckpointError(
            f"{folder / CONFIG} does not describe a network or a layer of convattn"
        )
    return config


def is_sealed(folder: str | os.PathLike[str]) -> bool:
    """Returns whether a folder, not the current one, holds what `write_sealed` wrote, and a card at most beside it."""
    folder, files = as_path(folder), {CONFIG, WEIGHTS, CERTIFICATE, "README.md"}
    try:
        found = DIGESTS in read_config(folder) and {file.name for file in folder.iterdir()} <= files
        return found and not (folder.is_symlink() or folder.samefile("."))
    except CheckpointError:
        return False


def may_replace(folder: str | os.PathLike[str], *, overwrite: bool) -> bool:
    """Returns whether a saved folder is to be replaced; raises ArgumentError unless it is that, new or empty."""
    if overwrite and is_sealed(folder):
        return True
    require_new_folder(
        folder, "folder (only a saved network or layer is overwritten)" if overwrite else "folder"
    )
    return False


def read_sealed(
    folder: str | os.PathLike[str], *, verify: bool = True
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the configuration and the tensors that `write_sealed` wrote, after comparing them with the digests.

    With verify=False, changes and NaN are accepted. Raises CheckpointError, which names the file, if one is missing,
    damaged or not what was saved. Warns with CertificateWarning if the certificate says that the conversion failed.
    """
    folder, config = as_path(folder), read_config(folder)
    try:
        tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"cannot read the weights in {folder}: {error}") from None
    if verify:
        _verify(folder, config, tensors)
        _require_numbers(tensors, CheckpointError, f"{folder / WEIGHTS}: ")
    _warn_of_certificate(folder)
    if LOAD_AS in config:
        tensors = _widened(tensors, config[LOAD_AS], folder / CONFIG)
    return {key: value for key, value in config.items() if key not in (DIGESTS, LOAD_AS)}, tensors


def require_sizes(
    options: Mapping[str, Any], tensors: Mapping[str, Tensor], place: str | os.PathLike[str]
) -> None:
    """Raises CheckpointError if options are too large for a network of these tensors, without building it.

    A whole number in them must not exceed every size of the tensors and 16,384, and there must not be more blocks
    ("depth") than tensors. The message begins with the place where the options were read.
    """
    most = max(_LARGEST, *(size for tensor in tensors.values() for size in tensor.shape), 0)
    for name, value in options.items():
        limit = len(tensors) if name == "depth" else most
        for number in _numbers(value):
            if abs(number) > limit:
                raise CheckpointError(
                    f"{place}: {must_be(name, f'at most {limit} with these tensors', number)}"
                )


def _numbers(value: object) -> list[int]:
    """Lists the whole numbers in nested lists and objects."""
    if isinstance(value, dict | list):
        return [
            number
            for item in (value.values() if isinstance(value, dict) else value)
            for number in _numbers(item)
        ]
    return [value] if isinstance(value, int) else []


def _verify(folder: Path, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raises if anything in a folder differs from what was saved, and says what."""
    digests = config.get(DIGESTS)
    if not isinstance(digests, dict) or not isinstance(digests.get("tensors"), dict):
        raise CheckpointError(
            f"{folder / CONFIG} has no digests, so changes cannot be found; {_HINT}"
        )
    if digests.get("configuration") != _config_digest(config):
        raise CheckpointError(f"{folder / CONFIG} is not what was saved; {_HINT}")
    saved, found = (
        digests["tensors"],
        {name: tensor_digest(name, tensor) for name, tensor in tensors.items()},
    )
    changed = [name for name in {**saved, **found} if saved.get(name) != found.get(name)]
    if changed:
        raise CheckpointError(f"{folder / WEIGHTS} is not what was saved: {some(changed)}; {_HINT}")
    file = folder / CERTIFICATE
    try:
        certificate = _digest(file.read_bytes()) if file.exists() else None
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error}") from None
    if certificate != digests.get("certificate"):
        state = "is missing" if certificate is None else "is not what was saved"
        raise CheckpointError(f"{file} {state}; {_HINT}")


def _warn_of_certificate(folder: Path) -> None:
    file = folder / CERTIFICATE
    if not file.exists():
        return
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        # Files of schema version 2 have `passed` in place of the verdict.
        failed = (
            content["passed"] is False if "passed" in content else content["verdict"] == "failed"
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is not a certificate ({type(error).__name__}: {error})"
        ) from None
    if failed:
        warnings.warn(
            f"the certificate in {folder} says that the conversion failed",
            CertificateWarning,
            stacklevel=4,
        )


def _widened(tensors: Mapping[str, Tensor], name: object, file: Path) -> dict[str, Tensor]:
    """Copies tensors with the floating-point ones in the dtype of that name, which must hold every value of theirs."""
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise CheckpointError(
            f"{file}: {must_be(LOAD_AS, 'the name of a floating-point dtype', name)}"
        )
    floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    rounded = [
        name
        for name, tensor in floating.items()
        if torch.promote_types(tensor.dtype, dtype) != dtype
    ]
    if rounded:
        raise CheckpointError(
            f"{file}: {LOAD_AS} is {name}, which does not hold every value of {some(rounded)}"
        )
    return {**tensors, **{name: tensor.to(dtype) for name, tensor in floating.items()}}


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies tensors to the CPU, each to a memory of its own, as the format needs them."""
    plain: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous()
        memory = whole.untyped_storage()
        if memory.nbytes() != whole.nbytes or memory.data_ptr() in taken:
            whole = whole.clone()
        taken.add(whole.untyped_storage().data_ptr())
        plain[name] = whole
    return plain


def _require_numbers(
    tensors: Mapping[str, Tensor], error: type[Exception], place: str = ""
) -> None:
    """Raises the given error if tensors hold NaN, and names them."""
    wrong = [name for name, tensor in tensors.items() if _has_nan(tensor)]
    if wrong:
        raise error(f"{place}{some(wrong)} {'holds' if len(wrong) == 1 else 'hold'} NaN")


def _has_nan(tensor: Tensor) -> bool:
    """Returns whether a tensor holds NaN; torch has no isnan for floating-point numbers of 8 bits."""
    wide = tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor
    return bool(wide.isnan().any())


def tensor_digest(name: str, tensor: Tensor) -> str:
    """Returns the SHA-256 of the name, dtype, shape and bytes of a contiguous tensor on the CPU."""
    head = json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
    digest = hashlib.sha256(head)
    digest.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()


def weights_digest(network: nn.Module) -> str:
    """Returns the SHA-256 of the names and values of a network's parameters and of the buffers that it saves.

    Of tensors without plain values (sparse, quantised, on the meta device), names, dtypes and shapes count alone.
    """
    digest = hashlib.sha256()
    for place, module in network.named_modules(remove_duplicate=False):
        saved = {
            name: x
            for name, x in module._buffers.items()
            if name not in module._non_persistent_buffers_set
        }
        for name, tensor in {**module._parameters, **saved}.items():
            if tensor is None:
                continue
            plain = tensor.detach()
            if (
                is_lazy(tensor)
                or plain.is_meta
                or plain.is_quantized
                or plain.layout is not torch.strided
            ):
                digest.update(
                    f"{place}.{name} {tensor.dtype} {'lazy' if is_lazy(tensor) else tensor.shape}".encode()
                )
            else:
                digest.update(tensor_digest(f"{place}.{name}", plain.cpu().contiguous()).encode())
    return digest.hexdigest()


def _config_digest(config: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a configuration and its digests, except this digest itself."""
    others = {key: value for key, value in config[DIGESTS].items() if key != "configuration"}
    text = json.dumps({**config, DIGESTS: others}, sort_keys=True, separators=(",", ":"))
    return _digest(text.encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
