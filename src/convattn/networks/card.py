"""The model card of a saved network: its source, its conversion, what was measured, how to load it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from huggingface_hub import ModelCardData
from torch import nn

from convattn.records import Certificate, NetworkCertificate

_REST = (
    "The weights are a plain state dict in `model.safetensors`; `config.json` says how each layer is rebuilt. The"
    " licence, the training data and the accuracy are those of the network that was converted, and are not known here."
)


def network_card(
    config: Mapping[str, Any],
    network: nn.Module,
    certificate: NetworkCertificate | Certificate | None,
    *,
    of_other_weights: bool = False,
) -> str:
    """Writes the model card of a saved network as Markdown with the Hub's front matter, from what `config.json` holds.

    What is not known is left out or called unknown. A certificate may be `of_other_weights` than the network has.
    """
    kinds = Counter(layer["kind"] for layer in config["layers"])
    attention = any("Attention" in kind for kind in kinds)
    tags = ["attention", "convolution", "relative-position"] if attention else ["convolution"]
    source = config["source"]
    name = source.partition(":")[2] if source else config["class"].rpartition(".")[2]
    data = ModelCardData(library_name="convattn", tags=tags, model_name=name)
    sections = [
        f"---\n{data.to_yaml()}\n---",
        f"# {name}",
        _what_it_is(config, network, certificate),
        "## Certificate\n\n" + _certificate(certificate, of_other_weights=of_other_weights),
        f"## Use\n\n```python\n{_use(config)}\n```",
        _REST,
    ]
    return "\n\n".join(sections) + "\n"


def _what_it_is(
    config: Mapping[str, Any], network: nn.Module, certificate: NetworkCertificate | Certificate | None
) -> str:
    origin = f"`{config['source']}`" if config["source"] else f"a network of class `{config['class']}`"
    options = f" with {config['options']}" if config["options"] else ""
    replaced = config["layers"]  # of a known source: those that a new network does not have
    if not config["source"]:
        told = certificate.layers if isinstance(certificate, NetworkCertificate) else ()
        converted = {layer.name for layer in told}
        replaced = [layer for layer in replaced if converted.intersection(layer["names"])]
    kinds = Counter(layer["kind"] for layer in replaced)
    parts = ", ".join(f"{count} `{kind}`" for kind, count in sorted(kinds.items()))
    none = "No layer was replaced." if config["source"] else "Whether layers of it replace others is not recorded."
    made = f"These layers replace others: {parts}." if parts else none
    parameters = sum(parameter.numel() for parameter in network.parameters())
    versions = ", ".join(f"{name} {version}" for name, version in config["versions"].items())
    return (
        f"This network was {origin}{options}. {made} It has {parameters:,} parameters, and was saved by convattn"
        f" {config['convattn']} with {versions}."
    )


def _certificate(certificate: NetworkCertificate | Certificate | None, *, of_other_weights: bool) -> str:
    if certificate is None:
        return "No certificate was saved with it."
    limit = ""
    if of_other_weights:
        limit = "**This certificate is of other weights**: the network was changed after its conversion.\n\n"
    elif certificate.weights is None:
        limit = "Whether this certificate is of these weights is not known: it holds no digest of them.\n\n"
    return f"{limit}```text\n{certificate.summary()}\n```\n\nEvery layer is in `certificate.json`."


def _use(config: Mapping[str, Any]) -> str:
    if config["source"] or any("" in layer["names"] for layer in config["layers"]):
        return 'from convattn import load_network\n\nnetwork = load_network("FOLDER")  # from_pretrained("OWNER/NAME")'
    name = config["class"].rpartition(".")[2]
    return (
        "from convattn import load_network\n\n"
        f'network = load_network("FOLDER", model={name}(...))  # a {name} as it was before its conversion'
    )
