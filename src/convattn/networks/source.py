"""Where the architecture of a network comes from: timm, torchvision or transformers, or a class of this library."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from convattn.errors import (
    ArgumentError,
    CheckpointError,
    ConvAttnError,
    optional_module,
    require,
    require_name,
    shown,
    without_trace,
)
from convattn.models.classifier import ImageClassifier
from convattn.random_numbers import built_for
from convattn.wording import some

NETWORKS: Mapping[str, str] = MappingProxyType(
    {
        "AttentionNet": "convattn.models.attention_net",
        "ConvNet": "convattn.models.attention_net",
        "ResNet": "convattn.models.resnet",
        "SpeedNet": "convattn.lab.speed_net",
    }
)
"""The module of every class of this library that builds a network; it is imported when one is built."""

_WEIGHTS = (
    "cache_dir",
    "checkpoint_path",
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "weights",
    "weights_backbone",
)
"""Options by which timm or torchvision would read weights from somewhere, or fetch them."""


def split_source(source: str) -> tuple[str, str]:
    """Splits a source such as "timm:NAME" into home and name.

    Raises ArgumentError if it has another form, and UnknownNameError if the home is unknown.
    """
    home, colon, name = source.partition(":")
    expected = '"timm:NAME", "torchvision:NAME", "hf:NAME" or "convattn:CLASS"'
    require(colon and name, "source", expected, source)
    require_name("source", home, HOMES)
    return home, name


def create_network(
    source: str, options: Mapping[str, Any] | None = None, *, pretrained: bool = False
) -> nn.Module:
    """Builds a network by its source.

    torch's random numbers are left as they were.

    Args:
        source: "timm:NAME", "torchvision:NAME", "convattn:CLASS", or "hf:NAME" for a network of transformers: a folder
            that its `save_pretrained` wrote, or "OWNER/MODEL" on the Hugging Face Hub.
        options: Further arguments of its builder; for transformers, changed values of its configuration.
        pretrained: Whether to fetch the weights that its home has for it; otherwise they are drawn.

    Returns:
        The network, in training mode like any new module.

    Raises:
        ArgumentError: There is no such network, or it does not take the options, or there are no weights for it.
        CheckpointError: The weights cannot be fetched, or a network of transformers cannot be built.
        UnknownNameError: There is no such class in this library.
        ConvAttnError: As its builder raises it, for instance where timm, torchvision or transformers is not installed.

    Example:
        >>> create_network("convattn:ConvNet", {"width": 8, "depth": 1}).width
        8
    """
    home, name = split_source(source)
    arguments = dict(options or {})
    wrong = sorted(arguments.keys() & set(_WEIGHTS))
    if wrong:
        raise ArgumentError(
            f"options must be those of the architecture, but {', '.join(wrong)} would bring weights"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            return HOMES[home](name, arguments, pretrained=pretrained)
    except ConvAttnError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {without_trace(error)}"
        if home == "hf":
            raise CheckpointError(f"cannot build {source}: {reason}") from error
        if pretrained:
            raise CheckpointError(f"cannot fetch the weights of {source}: {reason}") from error
        raise ArgumentError(
            f"options must fit {source}, but with {shown(arguments)} it raised {reason}"
        ) from error


def own_source(network: nn.Module) -> tuple[str, dict[str, Any]] | None:
    """Returns the source and the options of a network of this library; None of any other."""
    kind = type(network)
    name = kind.__name__
    if not isinstance(network, ImageClassifier) or NETWORKS.get(name) != kind.__module__:
        return None
    return f"convattn:{name}", dict(network.arguments)


def timm_preparation(network: nn.Module) -> Callable[[Any], Tensor]:
    """Returns the function that prepares an RGB picture of pillow as the configuration of a network of timm says.

    The size is that for which the network was built, which options may have changed.
    """
    _timm()
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    config = resolve_model_data_config(network)
    channels, *sides = config["input_size"]
    config["input_size"] = (channels, *(built_for(network) or sides))
    return create_transform(**config, is_training=False)  # type: ignore[return-value]


def torchvision_preparation(name: str) -> Callable[[Any], Tensor] | None:
    """Returns the function that prepares an RGB picture of pillow for the default weights of a network of torchvision.

    Returns None if the network has no weights.
    """
    weights = _torchvision_models().get_model_weights(name)
    return weights["DEFAULT"].transforms() if len(weights) else None


def transformers_preparation(name: str) -> Callable[[Any], Tensor] | None:
    """Returns the function that prepares an RGB picture of pillow as the files of a network of transformers say.

    Returns None if they do not say it, as those that `save_pretrained` of the network alone wrote. Raises ArgumentError
    if a package is missing that prepares them.
    """
    transformers = optional_module("transformers", "hf")
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(name, **_trusted(name))
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise ArgumentError(f"pictures for hf:{name} cannot be prepared: {reason}") from error
    except Exception:  # noqa: BLE001 - files of any content
        return None
    return lambda picture: processor(picture, return_tensors="pt")["pixel_values"][0]


def _create_own(name: str, options: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
    require_name("network", name, NETWORKS)
    if pretrained:
        raise ArgumentError(f"convattn:{name} has no pretrained weights")
    return getattr(import_module(NETWORKS[name]), name)(**options)


def _create_timm(name: str, options: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
    timm = _timm()
    if not timm.is_model(name):
        raise _unknown_model("timm", name, timm)
    repository = timm.get_pretrained_cfg(name).hf_hub_id
    if pretrained and repository:
        _require_fetchable(repository)
    return timm.create_model(name, pretrained=pretrained, **options)


def _create_torchvision(name: str, options: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
    """Builds a network of torchvision; without its weights, those of its backbone are drawn as well."""
    models = _torchvision_models()
    if name not in models.list_models():
        raise _unknown_model("torchvision", name, models)
    builder = models.get_model_builder(name)
    if pretrained:
        return builder(weights="DEFAULT", **options)
    arguments = dict(options)
    if "weights_backbone" in inspect.signature(builder).parameters:
        arguments["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        arguments.setdefault("init_weights", True)  # without it torchvision warns
    return builder(weights=None, **arguments)


def _create_transformers(name: str, options: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
    """Builds what a configuration says, of pictures and text the part for pictures; code that is with it is not run."""
    transformers = optional_module("transformers", "hf")
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # its report on weights: what is missing is an error here
    try:
        trusted = _trusted(name)
        config = transformers.AutoConfig.from_pretrained(name, **trusted)
        kind_name = config.architectures[0] if config.architectures else ""
        if getattr(config, "vision_config", None) is not None:
            kind_name, config = "", config.vision_config
        if kind_name:
            kind = getattr(transformers, kind_name, None)
        else:
            kind = transformers.MODEL_MAPPING.get(type(config), None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            described = kind_name or type(config).__name__
            raise ArgumentError(f"hf:{name} is no network of transformers ({described})")
        unknown = sorted(key for key in options if not hasattr(config, key))
        if unknown:
            raise ArgumentError(
                f"options must be in the configuration of hf:{name}, which has no {', '.join(unknown)}"
            )
        for key, value in options.items():
            setattr(config, key, value)
        if not pretrained:
            return kind(config)
        network, report = kind.from_pretrained(
            name, config=config, output_loading_info=True, **trusted
        )
    finally:
        transformers.logging.set_verbosity(verbosity)
    if report["missing_keys"]:
        missing = some(sorted(report["missing_keys"]))
        raise CheckpointError(f"hf:{name} has no weights for {missing}")
    return network.float()


HOMES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "convattn": _create_own,
        "hf": _create_transformers,
        "timm": _create_timm,
        "torchvision": _create_torchvision,
    }
)
"""What may stand before the colon of a source, with the function that builds a network of it."""


def _trusted(name: str) -> dict[str, Any]:
    """Returns the options by which transformers runs no foreign code, and asks the Hub only if it answers.

    Else its client would try for half a minute, and print every try.
    """
    is_here = Path(name).is_dir()
    return {"trust_remote_code": False, "local_files_only": not (is_here or _reaches_hub())}


def _require_fetchable(repository: str) -> None:
    """Raises CheckpointError if the weights in a repository of the Hub are not in its cache, and it does not answer."""
    hub = optional_module("huggingface_hub", "hub")
    if not (hub.try_to_load_from_cache(repository, "model.safetensors") or _reaches_hub()):
        raise CheckpointError(
            f"cannot fetch weights: the Hugging Face Hub does not answer, and {repository} is not in its cache"
        )


def _reaches_hub() -> bool:
    """Tells whether the Hugging Face Hub answers."""
    hub = optional_module("huggingface_hub", "hub")
    try:
        hub.get_session().head(hub.constants.ENDPOINT, timeout=10)
    except Exception:  # noqa: BLE001 - of a client that is not always the same
        return False
    return True


def _unknown_model(home: str, name: str, models: ModuleType) -> ArgumentError:
    """Makes the error about an unknown name, which suggests up to three that begin almost like it."""
    names = models.list_models()
    nearest = _nearest(name, names)
    hint = f" did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
    return ArgumentError(
        f"unknown {home} model {name!r}:{hint} {models.__name__}.list_models() has all {len(names)}"
    )


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """Returns up to three names that begin almost like this one, of several that begin alike the shortest."""
    beginnings: dict[str, str] = {}
    for model in sorted(known, key=len):
        beginnings.setdefault(model[: len(name) + 1], model)
    return [beginnings[near] for near in difflib.get_close_matches(name, beginnings, n=3)]


def _timm() -> ModuleType:
    return optional_module("timm", "timm")


def _torchvision_models() -> ModuleType:
    return optional_module("torchvision.models", "timm").models
