"""Saving whole networks: weights, what rebuilds the network, the certificate of its conversion and a model card."""

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from convattn.convert.certificate import Certificate, NetworkCertificate
from convattn.convert.surgery import require_network
from convattn.errors import ArgumentError, UnsupportedModelError, optional_module, require
from convattn.files import AnyPath, new_folder, write_atomically
from convattn.layers import FrozenAttention
from convattn.networks.differences import first_differences
from convattn.networks.loading import SCHEMA
from convattn.networks.pretrained import network_folder
from convattn.networks.replaced import are_network, describe_layers, put_layers
from convattn.networks.saved_layers import KINDS
from convattn.networks.source import create_network, own_source
from convattn.networks.tensors import describe_tensors, file_tensors
from convattn.provenance import describe_versions
from convattn.record import is_json
from convattn.sealed import CERTIFICATE, KIND, may_replace, read_config, write_sealed
from convattn.structure import Structure, full_name, network_digest
from convattn.wording import ITSELF

AnyCertificate = NetworkCertificate | Certificate
"""Certificate of a converted network or of a single layer."""


def save_network(
    network: nn.Module,
    folder: AnyPath,
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
    loading, where it is compared with what was saved.

    Args:
        network: The network; it is not changed.
        folder: Where; it must be new or empty, unless `overwrite`.
        source: "timm:NAME" or "torchvision:NAME", what the network was built by before its conversion; None for one of
            this library's, which knows, or for one that only the caller can build.
        options: Further arguments that it was built with, as JSON types, for instance {"num_classes": 10}.
        certificate: What the conversion returned.
        overwrite: Whether to replace a saved network that is there; a folder with other files is never replaced.

    Returns:
        The folder.

    Raises:
        UnsupportedModelError: The network could not be loaded as it is, or holds NaN; the message says why.
        ArgumentError: The network, the source, its options, the folder or the certificate are wrong, or the certificate
            is of another network.
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
    require_network("network", network)
    is_source = isinstance(source, str | None) and not str(source).startswith("hf:")
    require(is_source, "source", '"timm:NAME" or "torchvision:NAME"', source)
    expected = "None without a source, whose builder takes them"
    require(source or not options, "options", expected, options)
    replace = may_replace(folder, overwrite=overwrite)
    is_certificate = isinstance(certificate, AnyCertificate | None)
    require(is_certificate, "certificate", "what the conversion returned", certificate)
    builder, arguments = own_source(network) or (None, {})
    if source is not None:
        are_plain = isinstance(options, Mapping | None) and is_json(dict(options or {}))
        expected = "a dict of JSON types: numbers, text, True, False, None, lists"
        require(are_plain, "options", expected, options)
        builder, arguments = source, dict(options or {})
    home = builder.partition(":")[0] if builder else "convattn"
    try:
        _require_saveable(network)
        if certificate is not None:
            _require_certificate_of(network, certificate)
        tensors, tied = file_tensors(network)
        structure, described = Structure.of(network), describe_tensors(network)
        layers = describe_layers(network)
        if builder is not None:
            fresh = create_network(builder, arguments)
            own = describe_layers(fresh)
            layers = [layer for layer in layers if layer not in own]
            _require_rebuilt(structure, fresh, layers, described["buffers"], arguments)
        config = {
            "schema_version": SCHEMA,
            "kind": KIND,
            "class": full_name(type(network)),
            "source": builder,
            "options": arguments,
            "versions": describe_versions(["torch", home]),
            "layers": layers,
            "tied": tied,
            "structure": asdict(structure),
            **described,
        }
        with new_folder(folder, replace=replace) as temporary:
            write_sealed(temporary, config, tensors, certificate)
            write_atomically(temporary / "README.md", network_card(config, network, certificate))
    except UnsupportedModelError as error:
        place = f" as {builder}" if builder else ""
        raise UnsupportedModelError(
            f"cannot save this {type(network).__name__}{place}: {error}"
        ) from None
    return Path(folder)


def push_to_hub(  # noqa: PLR0913 - what a network is saved with, and what the Hub asks
    network: nn.Module | AnyPath,
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
            read_config(folder)
            if source is not None or options or certificate is not None:
                raise ArgumentError(
                    f"source, options and certificate must be left out, because {folder} has its own"
                )
        api = optional_module("huggingface_hub", "hub").HfApi(token=token)
        repository = api.create_repo(repo_id=repo_id, private=private, exist_ok=True)
        return api.upload_folder(
            repo_id=repository.repo_id,
            repo_type="model",
            folder_path=folder,
            # of an earlier network, which would not be those of this one
            delete_patterns=[
                name for name in (CERTIFICATE, "index.html") if not (folder / name).exists()
            ],
            commit_message=commit_message,
            revision=branch,
            create_pr=create_pr,
        )


def _require_saveable(network: nn.Module) -> None:
    """Raises if a network is wrapped, or has a layer that could not be rebuilt."""
    wrappers = nn.DataParallel | nn.parallel.DistributedDataParallel
    if hasattr(network, "_orig_mod") or isinstance(network, wrappers):
        raise UnsupportedModelError("save the network that it wraps")
    for name, module in network.named_modules():
        if isinstance(module, FrozenAttention):
            raise UnsupportedModelError(
                f"{name or ITSELF} is frozen and has no weights of its own. Save the network that was"
                " frozen, and freeze it again after loading"
            )
        if type(module).__module__.startswith("convattn.heads."):
            raise UnsupportedModelError(
                f"{name} was made by replace_heads, which a saved network cannot record. Save the"
                " state_dict, and load it after the same call of replace_heads"
            )


def _require_certificate_of(network: nn.Module, certificate: AnyCertificate) -> None:
    """Raises ArgumentError unless a certificate is of a network as it is now, or of a layer of it."""
    holders = [network]
    if isinstance(certificate, Certificate):
        holders = [module for module in network.modules() if type(module) in KINDS.values()]
    if all(network_digest(holder) != certificate.weights for holder in holders):
        raise ArgumentError(
            f"certificate must be that of this {type(network).__name__} as it is now, but is of another network, or its"
            " weights, layers or attributes were changed. Convert again, or leave it out"
        )


def _require_rebuilt(
    structure: Structure,
    fresh: nn.Module,
    layers: list[dict[str, Any]],
    dtypes: Mapping[str, str],
    arguments: dict[str, Any],
) -> None:
    """Raises UnsupportedModelError if a new network with the described layers is made of something else."""
    rebuilt = put_layers(fresh, json.loads(json.dumps(layers)))
    reasons = first_differences(structure.modules, Structure.of(rebuilt, dtypes).modules)
    if reasons:
        raise UnsupportedModelError(
            f"a new one with {arguments or 'no options'} differs: {reasons}. Give the options that it was built with,"
            " or no source, and the architecture again when it is loaded"
        )


_REST = (
    "The weights are a plain state dict in `model.safetensors`; `config.json` says how each layer is rebuilt. The"
    " licence, the training data and the accuracy are not known here."
)


def network_card(
    config: Mapping[str, Any], network: nn.Module, certificate: AnyCertificate | None
) -> str:
    """Writes the model card of a saved network as Markdown with the Hub's front matter, from what `config.json` holds.

    Unknown facts are left out or called unknown.
    """
    source, layers = config["source"], config["layers"]
    name = source.partition(":")[2] if source else config["class"].rpartition(".")[2]
    tags = ["convolution"]
    if any("Attention" in layer["kind"] for layer in layers):
        tags = ["attention", "convolution", "relative-position"]
    front = [
        'library_name: "convattn"',
        f"model_name: {json.dumps(name)}",
        f"tags: {json.dumps(tags)}",
    ]
    proof = "No certificate was saved with it."
    if certificate is not None:
        proof = f"```text\n{certificate.summary()}\n```\n\nEvery layer is in `certificate.json`."
    use = 'load_network("FOLDER")  # or "OWNER/NAME" on the Hub'
    if not source and not are_network(layers):
        use = (
            f'load_network("FOLDER", model={name}(...))  # a {name} as it was before its conversion'
        )
    sections = [
        "\n".join(["---", *front, "---"]),  # JSON is YAML
        f"# {name}",
        _origin(config, network),
        f"## Certificate\n\n{proof}",
        f"## Use\n\n```python\nfrom convattn import load_network\n\nnetwork = {use}\n```",
        _REST,
    ]
    return "\n\n".join(sections) + "\n"


def _origin(config: Mapping[str, Any], network: nn.Module) -> str:
    """Says what a network was, which layers of it are described, and what saved it."""
    origin = f"a network of class `{config['class']}`"
    if config["source"]:
        origin = f"`{config['source']}`"
    if config["options"]:
        origin += f" with {config['options']}"
    kinds = Counter(layer["kind"] for layer in config["layers"])
    counts = [f"{count} `{kind}`" for kind, count in sorted(kinds.items())]
    layers = ", ".join(counts) or "no layer"
    parameters = sum(parameter.numel() for parameter in network.parameters())
    versions = [f"{name} {version}" for name, version in config["versions"].items()]
    return (
        f"This network was {origin}. `config.json` describes {layers} of it. It has {parameters:,} parameters, and was"
        f" saved with {', '.join(versions)}."
    )
