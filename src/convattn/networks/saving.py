"""Saving whole networks: weights, what rebuilds the network, the certificate of its conversion and a model card."""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from convattn.__about__ import __version__
from convattn.convert.certificate import Certificate, NetworkCertificate
from convattn.convert.saved_layers import KINDS
from convattn.convert.surgery import full_name
from convattn.errors import (
    ArgumentError,
    UnsupportedModelError,
    must_be,
    must_be_a,
    optional_module,
)
from convattn.files import new_folder, write_atomically
from convattn.layers import FrozenAttention, RelativeAttention
from convattn.networks.loading import SCHEMA, saved_config
from convattn.networks.pretrained import network_folder
from convattn.networks.source import create_network, own_source, split_source
from convattn.networks.tensors import (
    describe_layers,
    describe_replaced,
    describe_tensors,
    differences,
    file_tensors,
    put_layers,
)
from convattn.sealed import may_replace, weights_digest, write_sealed
from convattn.wording import ITSELF

AnyCertificate = NetworkCertificate | Certificate
"""Certificate of a converted network or of a single layer."""

_REST = (
    "The weights are a plain state dict in `model.safetensors`; `config.json` says how each layer is rebuilt. The"
    " licence, the training data and the accuracy are those of the network that was converted, and are not known here."
)


def network_card(
    config: Mapping[str, Any], network: nn.Module, certificate: AnyCertificate | None
) -> str:
    """Writes the model card of a saved network as Markdown with the Hub's front matter, from what `config.json` holds.

    Unknown facts are left out or called unknown.
    """
    attention = any("Attention" in layer["kind"] for layer in config["layers"])
    tags = ["attention", "convolution", "relative-position"] if attention else ["convolution"]
    source = config["source"]
    name = source.partition(":")[2] if source else config["class"].rpartition(".")[2]
    proof = "No certificate was saved with it."
    if certificate is not None:
        limit = ""
        if certificate.weights is None:
            limit = "Whether this certificate is of these weights is not known: it holds no digest of them.\n\n"
        proof = (
            f"{limit}```text\n{certificate.summary()}\n```\n\nEvery layer is in `certificate.json`."
        )
    use = 'load_network("FOLDER")  # or "OWNER/NAME" on the Hub'
    if not source and not any("" in layer["names"] for layer in config["layers"]):
        use = (
            f'load_network("FOLDER", model={name}(...))  # a {name} as it was before its conversion'
        )
    sections = [
        f'---\nlibrary_name: "convattn"\nmodel_name: {json.dumps(name)}\ntags: {json.dumps(tags)}\n---',  # JSON is YAML
        f"# {name}",
        _origin(config, network, certificate),
        f"## Certificate\n\n{proof}",
        f"## Use\n\n```python\nfrom convattn import load_network\n\nnetwork = {use}\n```",
        _REST,
    ]
    return "\n\n".join(sections) + "\n"


def _origin(
    config: Mapping[str, Any], network: nn.Module, certificate: AnyCertificate | None
) -> str:
    """Says what a network was, which layers replace others, and what saved it."""
    origin = (
        f"`{config['source']}`" if config["source"] else f"a network of class `{config['class']}`"
    )
    options = f" with {config['options']}" if config["options"] else ""
    replaced = config["layers"]  # of a known source: those that a new network does not have
    if not config["source"]:
        entries = certificate.layers if isinstance(certificate, NetworkCertificate) else ()
        converted = {layer.name for layer in entries}
        replaced = [layer for layer in replaced if converted.intersection(layer["names"])]
    kinds = Counter(layer["kind"] for layer in replaced)
    parts = ", ".join(f"{count} `{kind}`" for kind, count in sorted(kinds.items()))
    none = (
        "No layer was replaced."
        if config["source"]
        else "Whether layers of it replace others is not recorded."
    )
    made = f"These layers replace others: {parts}." if parts else none
    parameters = sum(parameter.numel() for parameter in network.parameters())
    versions = ", ".join(f"{name} {version}" for name, version in config["versions"].items())
    return (
        f"This network was {origin}{options}. {made} It has {parameters:,} parameters, and was saved by convattn"
        f" {config['convattn']} with {versions}."
    )


_ADAPTERS = "convattn.heads."
_INITIALISED = "convattn.heads.patch_attention"


def save_network(
    network: nn.Module,
    folder: str | os.PathLike[str],
    *,
    source: str | None = None,
    options: Mapping[str, Any] | None = None,
    certificate: AnyCertificate | None = None,
    overwrite: bool = False,
) -> Path:
    """Saves a whole network, converted or not, as a folder that is whole or not there.

    The folder holds `model.safetensors` (the state dict, tied tensors once), `config.json` (where the architecture
    comes from, what rebuilds each layer that took the place of another, and digests by which loading knows that nothing
    was changed), `README.md` (a model card) and, where given, `certificate.json`.

    With a source, the network is compared with a new one: everything but the weights and the described layers must be
    equal, so that the loaded network computes the same. Without a source, the architecture must be given again on
    loading.

    Args:
        network: The network; it is not changed.
        folder: Where; it must be new or empty, unless `overwrite`.
        source: "timm:NAME" or "torchvision:NAME", what the network was built by before its conversion; None for one of
            this library's, which knows, or for one that only the caller can build.
        options: Further arguments that it was built with, as JSON types, for instance {"num_classes": 10}.
        certificate: What the conversion returned.
        overwrite: Whether to replace a saved network or layer that is there; a folder with other files is never
            replaced.

    Returns:
        The folder.

    Raises:
        UnsupportedModelError: The network could not be loaded as it is, or holds NaN; the message says why.
        ArgumentError: The network, the source, its options, the folder or the certificate are wrong, or the certificate
            is of other weights.
        MissingDependencyError: The source is not installed.
        WriteError: The folder cannot be written.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from convattn.convert import network_to_attention
        >>> from convattn.networks import load_network
        >>> net = nn.Sequential(nn.Conv1d(2, 3, 5), nn.ReLU())
        >>> made, certificate = network_to_attention(net, images=torch.zeros(1, 2, 7))
        >>> with tempfile.TemporaryDirectory() as place:
        ...     folder = save_network(made, Path(place) / "made", certificate=certificate)
        ...     type(load_network(folder, model=net)[0]).__name__
        'RelativeAttention1d'
    """
    if not isinstance(network, nn.Module):
        raise ArgumentError(must_be_a("network", "an nn.Module", network))
    if source is not None and (not isinstance(source, str) or source.startswith("hf:")):
        raise ArgumentError(must_be("source", '"timm:NAME" or "torchvision:NAME"', source))
    replace = may_replace(folder, overwrite=overwrite)
    if certificate is not None and not isinstance(certificate, AnyCertificate):
        raise ArgumentError(must_be("certificate", "what the conversion returned", certificate))
    kind = type(network).__name__
    _require_layers(network, certificate)
    if not _may_be_of(certificate, network):
        raise ArgumentError(
            f"certificate must be that of the weights that this {kind} has now, but is of other weights. Convert again,"
            " or leave it out"
        )
    built = own_source(network) if source is None else (source, _json_options(options))
    home, built_with = built or (None, {})
    if source is None and options:
        raise ArgumentError(
            must_be("options", "None without a source, whose builder takes them", options)
        )
    try:
        layers = describe_layers(network) if built is None else _compare_with_new(network, *built)
        tensors, tied = file_tensors(network)
    except UnsupportedModelError as error:
        place = f" as {home}" if home else ""
        raise UnsupportedModelError(f"cannot save this {kind}{place}: {error}") from None
    config = {
        "convattn": __version__,
        "schema_version": SCHEMA,
        "kind": "network",
        "class": full_name(type(network)),
        "source": home,
        "options": built_with,
        "versions": _builder_versions(home),
        "layers": layers,
        "tied": tied,
        **describe_tensors(network),
    }
    with new_folder(folder, replace=replace) as temporary:
        try:
            write_sealed(temporary, config, tensors, certificate, metadata=tied)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"cannot save this {kind}: {error}") from None
        card = network_card(config, network, certificate)
        write_atomically(temporary / "README.md", card)
    return Path(folder)


def push_to_hub(  # noqa: PLR0913 - what a network is saved with, and what the Hub asks
    network: nn.Module | str | os.PathLike[str],
    repo_id: str,
    *,
    source: str | None = None,
    options: Mapping[str, Any] | None = None,
    certificate: AnyCertificate | None = None,
    commit_message: str = "Upload network by convattn",
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    create_pr: bool | None = None,
) -> str:
    """Uploads a network to the Hugging Face Hub, with its card.

    Args:
        network: The network, a folder that `save_network` or `convattn convert` wrote, or "convattn:NAME".
        repo_id: Repository "owner/name"; it is created if it does not exist.
        source: As in `save_network`.
        options: As in `save_network`.
        certificate: As in `save_network`.
        commit_message: Message of the commit.
        private: Whether a new repository is private; None takes the owner's default.
        token: Token for the Hub; None takes the one stored by `hf auth login`.
        branch: Branch to upload to; None means the main one.
        create_pr: Whether to open a pull request in place of a commit.

    Returns:
        The address of the commit.

    Raises:
        ArgumentError: A folder was given, and a source, options or a certificate beside it.
        UnsupportedModelError: The network would not come back as it is.
        CheckpointError: The folder holds no network.
        MissingDependencyError: huggingface-hub is not installed.

    Example:
        >>> from convattn.models import ResNet
        >>> network = ResNet(1, width=8)
        >>> push_to_hub(network, "owner/name", private=True)  # doctest: +SKIP
        'https://huggingface.co/owner/name/commit/...'
    """
    with tempfile.TemporaryDirectory() as place:
        if isinstance(network, nn.Module):
            folder = save_network(
                network, f"{place}/network", source=source, options=options, certificate=certificate
            )
        else:
            folder = network_folder(network, "network")
            saved_config(folder)
            if source is not None or options or certificate is not None:
                raise ArgumentError(
                    f"source, options and certificate must be left out, because {folder} has its own"
                )
        api = optional_module("huggingface_hub", "huggingface-hub", "hub").HfApi(token=token)
        return api.upload_folder(
            repo_id=api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id,
            repo_type="model",
            folder_path=folder,
            commit_message=commit_message,
            revision=branch,
            create_pr=create_pr,
        )


def _require_layers(network: nn.Module, certificate: AnyCertificate | None) -> None:
    """Raises if a network is wrapped, a layer could not be rebuilt, or the certificate is of another network."""
    kind, places = type(network).__name__, dict(network.named_modules(remove_duplicate=False))
    rooms = {name: type(module).__module__ for name, module in places.items()}
    if hasattr(network, "_orig_mod") or isinstance(
        network, nn.DataParallel | nn.parallel.DistributedDataParallel
    ):
        raise UnsupportedModelError(f"cannot save this {kind}: save the network that it wraps")
    if made := [name for name, room in rooms.items() if room.startswith(_ADAPTERS)]:
        maker = (
            "convolutional_init"
            if _INITIALISED in rooms.values()
            else "replace_convolutional_heads"
        )
        raise UnsupportedModelError(
            f"cannot save this {kind}: {made[0]} was made by {maker}, which a saved network cannot record. Save the"
            f" state_dict, and load it after the same call of {maker}"
        )
    if frozen := [name for name, module in places.items() if isinstance(module, FrozenAttention)]:
        raise UnsupportedModelError(
            f"cannot save this {kind}: {frozen[0] or ITSELF} is frozen and has no weights of its own. Save the network"
            " that was frozen, and freeze it again after loading"
        )
    if not isinstance(certificate, NetworkCertificate):
        return
    to_attention = certificate.direction == "network_to_attention"
    for layer in certificate.layers:
        if layer.name not in places:
            wanted = f"that of this {kind}, which has no {layer.name}"
            raise ArgumentError(
                f"certificate must be {wanted}, but is that of a {certificate.source}"
            )
        attends = any(
            isinstance(module, RelativeAttention) for module in places[layer.name].modules()
        )
        if attends is not to_attention:
            wanted = f"that of this {kind}, where {layer.name or ITSELF} is{'' if attends else ' no'} attention"
            raise ArgumentError(
                f"certificate must be {wanted}, but is that of {certificate.direction}"
            )


def _may_be_of(certificate: AnyCertificate | None, network: nn.Module) -> bool:
    """Tells whether a certificate is of the weights that a network, or a layer of it, has, or does not say of which."""
    if certificate is None or certificate.weights is None:
        return True
    if isinstance(certificate, NetworkCertificate):
        return weights_digest(network) == certificate.weights
    layers = (module for module in network.modules() if type(module) in KINDS.values())
    return any(weights_digest(layer) == certificate.weights for layer in layers)


def _compare_with_new(
    network: nn.Module, source: str, options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Describes the layers that differ from a new network, and refuses a network that differs in anything else."""
    fresh = create_network(source, options)
    hint = "Give the options that it was built with, or no source, and the architecture again when it is loaded"
    try:
        layers = describe_replaced(network, fresh)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{error}. {hint}") from None
    differing = list(
        islice(differences(network, put_layers(fresh, json.loads(json.dumps(layers)))), 4)
    )
    if differing:
        shown = "; ".join(differing[:3]) + ("; and more" if len(differing) > 3 else "")
        raise UnsupportedModelError(
            f"a new one with {options or 'no options'} differs: {shown}. {hint}"
        )
    return layers


def _json_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Reads options, which must survive JSON."""
    try:
        chosen = dict(options or {})
        if json.loads(json.dumps(chosen)) == chosen:
            return chosen
    except (TypeError, ValueError, RecursionError):
        pass
    raise ArgumentError(
        must_be("options", "a dict of JSON types: numbers, text, True, False, None, lists", options)
    )


def _builder_versions(source: str | None) -> dict[str, str]:
    packages = ["torch"]
    if source is not None and split_source(source)[0] != "convattn":
        packages.append(split_source(source)[0])
    return {package: version(package) for package in packages}
