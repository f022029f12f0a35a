"""Loads everything that this library saves: networks, converted or not, runs, single layers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from convattn.convert.network_runs import copy_network
from convattn.errors import ArgumentError, CheckpointError, must_be_a, without_trace
from convattn.files import AnyPath
from convattn.networks.differences import first_differences
from convattn.networks.pretrained import fetch, network_folder
from convattn.networks.replaced import are_network, put_layers
from convattn.networks.source import create_network
from convattn.networks.tensors import load_tensors
from convattn.sealed import CONFIG, read_sealed
from convattn.structure import Structure

SCHEMA = 2

_FIELDS: dict[str, Any] = {
    "class": str,
    "source": str | None,
    "options": dict,
    "layers": list,
    "tied": dict,
    "structure": dict,
    "frozen": list,
    "strides": dict,
    "buffers": dict,
}
"""Required fields of the `config.json` of a network."""

_LARGEST = 1 << 14
"""Size up to which an option of a network may exceed every size of its tensors, as that of its images does."""


def load_network(
    source: AnyPath,
    *,
    model: nn.Module | None = None,
    verify: bool = True,
    revision: str | None = None,
    cache_dir: AnyPath | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> nn.Module:
    """Loads a network: from a folder, by the name of one that comes with the package, or from the Hugging Face Hub.

    Args:
        source: Folder that `save_network`, a run or the command wrote; "convattn:NAME" for a trained
            network that comes with the package, which `convattn info` lists; or, where there is no such folder, the
            repository "owner/name" on the Hub.
        model: For a network that was saved without a source: a network as it was before its conversion, which is not
            changed. Its weights play no part; its classes, attributes, hooks and unsaved buffers must be those of the
            saved one. Contents of foreign objects are not compared: `config.json` names them.
        verify: Whether to refuse a folder if tensors, configuration or certificate were changed after saving, and a
            network that is made of something else than the saved one. False loads what was edited on purpose.
        revision: Branch, tag or commit of the repository; None takes its main branch.
        cache_dir: Folder for downloads; None takes the Hub's own cache.
        force_download: Whether to download files again that are in the cache.
        local_files_only: Whether to use the cache only, and download nothing.
        token: Token for the Hub; None takes the one stored by `hf auth login`.

    Returns:
        The network on the CPU, in evaluation mode, with the tensors that were saved, bit for bit. Where `config.json`
        has "load_as", they are in that dtype, which holds every value of the file's.

    Raises:
        CheckpointError: A file is missing, damaged or not what was saved, the parts do not fit together, or not into
            the model, or the repository cannot be fetched.
        ArgumentError: The source is not a path; or `model` is missing, or no network.
        UnsupportedModelError: The model cannot be copied.
        UnknownNameError: The package has no network of that name.
        MissingDependencyError: timm or torchvision, where the architecture comes from, is not installed; or
            huggingface-hub, for a repository.

    Warns:
        CertificateWarning: The certificate of the network says that its conversion failed.

    Example:
        >>> import torch
        >>> network = load_network("convattn:cifar10-small")
        >>> network(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    folder = fetch(
        source,
        revision=revision,
        cache_dir=cache_dir,
        force_download=force_download,
        local_files_only=local_files_only,
        token=token,
    )
    return _restore(folder, model, verify=verify).network


class LoadedNetwork(NamedTuple):
    """A network in evaluation mode, and where it comes from."""

    network: nn.Module
    source: str | None  # What builds its architecture; None if unknown
    options: dict[str, Any]  # What it is built with
    folder: Path | None  # Where it was saved; None if it was built
    drawn: bool = False  # Whether its weights are random
    # Mean and standard deviation of each channel that a user gives for it; None if it says them itself
    colours: tuple[tuple[float, ...], tuple[float, ...]] | None = None


def load_with_source(folder: AnyPath, *, verify: bool = True) -> LoadedNetwork:
    """Loads a network as `load_network` does, with what builds its architecture."""
    return _restore(fetch(network_folder(folder), cache_dir=None), None, verify=verify)


def _restore(folder: Path, model: nn.Module | None, *, verify: bool) -> LoadedNetwork:
    """Builds a network, puts its layers in their places, holds it against the saved one, and gives it the tensors."""
    config, tensors = read_sealed(folder, verify=verify)
    file = folder / CONFIG
    schema = config.get("schema_version")
    if schema != SCHEMA:
        raise CheckpointError(f"{file} must be of schema version {SCHEMA}, but is of {schema!r}")
    damaged = [name for name, kind in _FIELDS.items() if not isinstance(config.get(name), kind)]
    if damaged:
        raise CheckpointError(f"{file} is damaged: {', '.join(damaged)}")
    if model is not None:
        if not isinstance(model, nn.Module):
            raise ArgumentError(must_be_a("model", "a network, an instance of its class", model))
        network = copy_network(model)
    elif are_network(config["layers"]):
        network = nn.Identity()  # a layer that is the network takes its place
    else:
        network = _build(file, config, tensors)
    try:
        network = put_layers(network, config["layers"])
        if verify:
            _require_structure(network, config, is_given=model is not None)
        load_tensors(network, tensors, config)
    except Exception as error:  # noqa: BLE001 - edited files may raise any error
        together = "together" if model is None else "with the model given"
        raise CheckpointError(
            f"the files in {folder} do not fit {together}: {without_trace(error)}"
        ) from None
    return LoadedNetwork(network.eval(), config["source"], config["options"], folder)


def _require_structure(network: nn.Module, config: dict[str, Any], *, is_given: bool) -> None:
    """Raises CheckpointError, which names the differences, unless a network is made of what was saved."""
    structure = Structure.of(network, config["buffers"])
    reasons = first_differences(structure.modules, config["structure"]["modules"])
    if not reasons:
        return
    advice = "Build model as the saved network was built, hooks and attributes included"
    if not is_given:
        versions = [f"{name} {version}" for name, version in config["versions"].items()]
        advice = (
            f"{config['source']} is not what it was when it was saved, with {', '.join(versions)}"
        )
    raise CheckpointError(
        f"{reasons}. {advice}; verify=False leaves out this check, but not that of names and shapes"
    )


def _build(file: Path, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Builds the architecture that a configuration names."""
    source = config["source"]
    if source is None:
        kind = config["class"].rpartition(".")[2]
        raise ArgumentError(
            f"model must be given, because {file.parent} does not say what builds its {config['class']}, so that it is"
            f" loaded only from Python: load_network({str(file.parent)!r}, model={kind}(...)), as it was before its"
            " conversion"
        )
    try:
        if source.startswith("hf:"):
            raise ArgumentError("one of transformers is not fetched for a saved network")
        _require_sizes(config["options"], tensors)
        return create_network(source, config["options"])
    except ArgumentError as error:
        raise CheckpointError(f"{file} describes a network that cannot be built: {error}") from None


def _require_sizes(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raises ArgumentError if options are too large for a network of these tensors, without building it.

    A whole number in them must not exceed every size of the tensors and 16,384, and there must not be more blocks
    ("depth") than tensors.
    """
    largest = _LARGEST
    for tensor in tensors.values():
        largest = max(largest, *tensor.shape, 0)
    for name, value in options.items():
        limit = len(tensors) if name == "depth" else largest
        for number in tree_leaves(value):
            if isinstance(number, int) and abs(number) > limit:
                raise ArgumentError(
                    f"{name} must be at most {limit} with these tensors, but is {number}"
                )
