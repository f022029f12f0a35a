"""The options that say which network a command takes, and how it is built or loaded."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from convattn.cli.output import Imports, Numbers, Settings, key_values, require_absent
from convattn.errors import (
    ArgumentError,
    DeviceError,
    require_name,
    require_packages,
    without_trace,
)

if TYPE_CHECKING:
    from torch import nn

    from convattn.networks.loading import LoadedNetwork


_MODULES = {
    "torchvision:": ("timm", ("torchvision",)),
    "timm:": ("timm", ("timm", "torchvision")),
    "hf:": ("hf", ("transformers",)),
}
"""The extra and the modules of the libraries that networks come from; of one extra, the most modules last."""


@Parameter(name="*")
@dataclass(frozen=True)
class NetworkOptions:
    """Where the weights of a network come from.

    Attributes:
        weights: File with the weights of a network of timm, torchvision or hf:, a state dict in safetensors or as
            torch.save writes it; all names and shapes must fit.
        pretrained: Take the weights that timm, torchvision, or the folder or repository of hf: has for the network.
        random_weights: Draw the weights, with seed 0.
        arguments: KEY=VALUE, an argument for the builder of a network of timm or torchvision, for instance
            num_classes=10, or a value of the configuration of one of hf:; the value is JSON or text. May be given more
            than once.
        imports: Module to import first, which registers encodings of your own; it is looked for in the current folder,
            too. May be given more than once.
        no_verify: Accept a folder whose files were changed after it was saved.
        mean: Mean of each channel with which the network was trained, in units of the full range [0, 1], for instance
            0.5,0.5,0.5, where nothing says how its pictures are prepared. They are then cropped at the middle to a
            square and resized to the network's size. Needs --std.
        std: Standard deviation of each channel, as --mean.
        device: Where the network computes, for instance cuda or cuda:1. Default: cpu.
    """

    weights: Path | None = None
    pretrained: bool = False
    random_weights: bool = False
    arguments: Settings = ()
    imports: Imports = ()
    no_verify: bool = False
    mean: Numbers = ()
    std: Numbers = ()
    device: str = "cpu"

    def by_name(self) -> dict[str, object]:
        """Returns the options of a network that is built, by their names."""
        return {
            "--weights": self.weights,
            "--pretrained": self.pretrained,
            "--random-weights": self.random_weights,
            "--set": self.arguments,
        }

    def load(self, source: str, *, beside: Sequence[str] = ()) -> "LoadedNetwork":
        """Loads a saved network, or builds one of another library, and moves it to the device.

        Options of weights are for networks that are built: a saved one refuses them, unless one `beside` it is built.
        """
        from convattn.encodings.registry import import_modules
        from convattn.networks.images import normalisation
        from convattn.networks.loading import load_with_source

        options, saved = self, _is_saved(source)
        if saved and not all(map(_is_saved, beside)):
            options = DEFAULTS  # others are of the network that is built
        colours = options._colours()
        import_modules(self.imports)
        if saved:
            reason = f"is for a network of another library; {source} has its own"
            require_absent(options.by_name(), reason)
            loaded = load_with_source(source, verify=not self.no_verify)
            if options is not self and normalisation(loaded) is None:
                colours = self._colours()
        else:
            loaded = self._build(source)
        return loaded._replace(network=self._move(loaded.network), colours=colours)

    def _colours(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Returns the mean and the standard deviation of each channel, if they are given."""
        mean, std = self.mean, self.std
        if not mean and not std:
            return None
        if len(mean) != len(std) or len(mean) not in (1, 3) or not min(std) > 0:
            raise ArgumentError(
                "--mean and --std must be one number (grey) or three (colours) each, such as 0.5,0.5,0.5, above 0 for"
                f" --std, but are {mean} and {std}"
            )
        return mean, std

    def _move(self, network: "nn.Module") -> "nn.Module":
        """Moves a network to the device; raises DeviceError if it cannot be used."""
        try:
            return network.to(self.device)
        except (RuntimeError, AssertionError) as error:  # as torch refuses a device
            reason = without_trace(error)
            raise DeviceError(f"--device {self.device} cannot be used: {reason}") from None

    def _build(self, source: str) -> "LoadedNetwork":
        """Builds a network, with seed 0 where weights are drawn; exactly one option must say which weights it has."""
        import torch

        from convattn.networks import create_network
        from convattn.networks.loading import LoadedNetwork
        from convattn.networks.tensors import load_weights

        options = read_values(self.arguments, "--set")
        given = [name for name, value in self.by_name().items() if value and name != "--set"]
        if len(given) != 1:
            words = f"{' and '.join(given)} are given" if given else "none is given"
            raise ArgumentError(
                f"the weights of {source} must be given by exactly one of --weights FILE, --pretrained and"
                f" --random-weights, but {words}"
            )
        torch.manual_seed(0)
        network = create_network(source, options, pretrained=self.pretrained).eval()
        if self.weights is not None:
            load_weights(network, self.weights)
        return LoadedNetwork(network, source, options, None, self.random_weights)


def require_network(source: str) -> None:
    """Raises ArgumentError unless a source is a folder or, by its colon, a name; it asks before torch is loaded."""
    if ":" not in source and not Path(source).is_dir():
        raise ArgumentError(
            f"there is no folder {source!r}; a network by name is timm:{source}, torchvision:{source},"
            " hf:OWNER/MODEL or convattn:NAME (`convattn info` lists those); one of a class of your own is taken in"
            " Python, as by network_to_attention(NETWORK)"
        )


def require_packages_of(*sources: str, **needed: Sequence[str]) -> None:
    """Raises one MissingDependencyError for what networks of other libraries need, and for modules `needed` besides.

    These are given by the extra that brings them.
    """
    for home, (extra, modules) in _MODULES.items():
        if any(source.startswith(home) for source in sources):
            needed[extra] = modules
    require_packages(**needed)


def _is_saved(source: str) -> bool:
    """Tells whether a network comes with its weights: from a folder, or from this package.

    Raises UnknownNameError if this package has none of that name.
    """
    from convattn.networks.pretrained import pretrained_names
    from convattn.networks.source import NETWORKS

    home, colon, name = source.partition(":")
    if Path(source).is_dir() or not colon:
        return True
    if home != "convattn" or name in NETWORKS:
        return False
    require_name("network", name, [*pretrained_names(), *NETWORKS])
    return True


def read_values(texts: Iterable[str], option: str) -> dict[str, Any]:
    """Reads the KEY=VALUE texts of an option; a value is JSON if it is that, and text otherwise."""
    values: dict[str, Any] = dict(key_values(texts, option))
    for key, text in values.items():
        with suppress(ValueError, RecursionError):
            values[key] = json.loads(text)
    return values


DEFAULTS = NetworkOptions()
"""The options when none is given."""
