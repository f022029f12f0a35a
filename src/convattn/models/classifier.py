"""The base of the image classifiers: how they are saved and loaded, and how their operations are counted."""

import copy
import inspect
import os
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from convattn.encodings import Shift
from convattn.errors import ArgumentError, CheckpointError, UnsupportedModelError, without_trace
from convattn.files import as_path, new_files, new_folder, write_atomically
from convattn.layers import RelativeAttention
from convattn.models.pretrained import fetch, front_matter
from convattn.sealed import CONFIG, read_sealed, require_sizes, write_sealed
from convattn.wording import some

_CARD = "README.md"


@dataclass(frozen=True)
class FlopCount:
    """Floating-point operations of one forward pass on one image; a multiplication and its addition count as two.

    Only matrix products are counted: not the softmax, the normalisations, the biases or the activations. Mixing is
    counted as in the paper, with N x N weights per head; layers on a cheaper path take fewer.
    """

    linear: int  # Linear maps of channels, the heads' value matrices and convolutions included
    mixing: int = 0  # Weighted means of pixels, A_h x
    content_scores: int = 0  # Products of queries and keys, q·k
    position_scores: int = 0  # Products of queries and relative positions, q·r_δ

    @property
    def total(self) -> int:
        """All of them together."""
        return self.linear + self.mixing + self.content_scores + self.position_scores


_Model = TypeVar("_Model", bound="ImageClassifier")


class ImageClassifier(nn.Module, ABC):
    """A network with `save_pretrained` and `from_pretrained`; `convattn.push_to_hub` uploads it.

    A saved network is ``model.safetensors`` (weights) and ``config.json`` (the constructor's arguments, the class under
    the key "architecture", and digests of all). Loading raises if anything was changed or the weights do not fit
    exactly; no weight is ever left random.

    Attributes:
        arguments: The constructor's arguments as JSON types, those with their defaults as well.
    """

    arguments: dict[str, Any]

    def __new__(cls, *values: Any, **named: Any) -> Any:
        """Records the arguments of `__init__`."""
        made = super().__new__(cls)
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        defaults = {one.name: one.default for one in parameters}
        given = {**defaults, **dict(zip(defaults, values, strict=False)), **named}
        made.arguments = {name: _plain(value) for name, value in given.items()}
        return made

    def flops(self, image_size: int = 32) -> FlopCount:
        """Counts the floating-point operations for one image, from the sizes of its layers alone.

        Args:
            image_size: Rows and columns of the image; of an `AttentionNet` or `ConvNet` divisible by the patch.

        Returns:
            Operations of the linear maps, of convolutions with the taps on the padding, of the mixing and of the
            scores; mixing and scores with N x N weights.
        """
        return _count_flops(self, image_size)

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Saves the network in a folder, which stays as it is if that fails.

        Args:
            save_directory: The folder; files of the same names are replaced one by one, except the card `README.md`.

        Raises:
            ArgumentError: The folder is not a path, or is a file.
            UnsupportedModelError: The network could not be loaded again, or a tensor holds NaN.
            WriteError: The folder cannot be written, or the disk is full.
        """
        folder = as_path(save_directory, "save_directory")
        with new_files(folder, CONFIG) if folder.is_dir() else new_folder(folder, "save_directory") as temporary:
            self._require_loadable()
            try:
                write_sealed(temporary, {"architecture": type(self).__name__, **self.arguments}, self.state_dict())
            except UnsupportedModelError as error:
                raise UnsupportedModelError(f"cannot save {type(self).__name__}: {error}") from None
            if not (folder / _CARD).exists():
                write_atomically(temporary / _CARD, self._card())

    @classmethod
    def from_pretrained(
        cls: type[_Model],
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        map_location: str | torch.device = "cpu",
        verify: bool = True,
        **arguments: Any,
    ) -> _Model:
        """Loads a network from a folder or, if there is no such folder, from the Hub.

        Args:
            pretrained_model_name_or_path: Folder, "convattn:NAME" for a network that comes with the package, or
                repository "owner/name" on the Hub.
            force_download: Whether to download files again that are in the cache.
            token: Token for the Hub; None takes the one stored by `hf auth login`.
            cache_dir: Folder for downloads; None takes the Hub's own cache.
            local_files_only: Whether to use the cache only, and download nothing.
            revision: Branch, tag or commit of the repository; None takes its main branch.
            map_location: Device of the network.
            verify: Whether to raise if files were changed after they were saved.
            **arguments: Arguments of the class, instead of the saved ones.

        Returns:
            The network, in evaluation mode.

        Raises:
            ArgumentError: The class does not take the arguments given here, or the package has no network of that name.
            CheckpointError: A file is missing, damaged or was changed, or the weights are not of this class.
            MissingDependencyError: The network is on the Hub, and huggingface-hub is not installed.
        """
        folder = fetch(
            pretrained_model_name_or_path,
            force_download=force_download,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            revision=revision,
        )
        saved, tensors = read_sealed(folder, verify=verify)
        chosen = {name: value for name, value in saved.items() if name != "architecture"} | arguments
        require_sizes(saved, tensors, folder)
        try:
            with torch.device("meta"):  # where sizes that do not fit the tensors take no memory
                trial = cls(**chosen)
        except Exception as error:  # noqa: BLE001 - edited files may raise any error
            if arguments:
                raise ArgumentError(
                    f"{cls.__name__} does not take {arguments} with what {folder} says: {error}"
                ) from None
            raise CheckpointError(f"{folder} does not describe a {cls.__name__}: {without_trace(error)}") from None
        try:
            trial.load_state_dict(tensors, assign=True)
            network = cls(**chosen)
            network.load_state_dict(tensors)
        except RuntimeError as error:
            raise CheckpointError(f"{folder} does not hold the weights of this {cls.__name__}: {error}") from None
        return network.to(map_location).eval()

    def _copy(self: _Model, **arguments: Any) -> _Model:
        """Copies the network and gives the copy new arguments; the caller adapts its modules."""
        made = copy.deepcopy(self)
        made.arguments = {**self.arguments, **arguments}
        return made

    def _require_loadable(self) -> None:
        """Raises UnsupportedModelError unless the tensors are those of a new network with the same arguments."""
        with torch.device("meta"):
            plain = type(self)(**self.arguments)
        found, expected = ({name: item.shape for name, item in net.state_dict().items()} for net in (self, plain))
        differing = sorted({name for name, _ in found.items() ^ expected.items()})
        if differing:
            raise UnsupportedModelError(
                f"cannot save {type(self).__name__}: it would not load, because its layers are not those of its"
                f" arguments ({some(differing)}); convattn.save_network saves a converted network"
            )

    def _card(self) -> str:
        """Writes a model card, as Markdown with the Hub's front matter."""
        name = type(self).__name__
        head = front_matter(library_name="convattn", license="apache-2.0", model_name=name)
        use = 'from convattn import load_network\n\nnetwork = load_network("FOLDER")  # from_pretrained("OWNER/NAME")'
        what = "A network of convattn; the paper is https://arxiv.org/abs/1911.03584."
        return f"{head}\n\n# {name}\n\n{what}\n\n```python\n{use}\n```\n"


def _plain(value: Any) -> Any:
    """Returns a sequence as a list, the only one that JSON has, and other values as they are."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _count_flops(network: "ImageClassifier", image_size: int) -> FlopCount:
    """Runs a copy without values, and counts by the sizes of what its layers take and give."""
    counts = dict.fromkeys(("linear", "mixing", "content_scores", "position_scores"), 0)

    def count(layer: nn.Module, _: Any, output: Tensor) -> None:
        counts["linear"] += 2 * output.numel() * cast(Tensor, layer.weight)[0].numel()

    def count_attention(layer: RelativeAttention, inputs: tuple[Tensor], output: Tensor) -> None:
        queries, keys = output[0, 0].numel(), inputs[0][0, 0].numel()
        counts["linear"] += 2 * queries * sum(weight.numel() for weight in layer.values.parameters())
        if not isinstance(layer.encoding, Shift):
            counts["mixing"] += 2 * queries * keys * layer.num_heads * layer.in_channels
        if layer.content is not None:
            products = 2 * queries * keys * layer.content.key.out_features
            counts["linear"] += 2 * (queries + keys) * layer.content.key.weight.numel()
            counts["content_scores"] += products
            counts["position_scores"] += products if layer.content.uses_position else 0

    empty = copy.deepcopy(network).to("meta").eval()
    attention = [module for module in empty.modules() if isinstance(module, RelativeAttention)]
    inside = {module for layer in attention for module in layer.modules()}
    for layer in attention:
        layer.impl = "reference"  # the other paths look at the weights
        layer.register_forward_hook(count_attention)
    for module in set(empty.modules()) - inside:
        weight = getattr(module, "weight", None)
        if weight is not None and weight.ndim > 1:
            module.register_forward_hook(count)
    empty(torch.empty(1, network.arguments["in_channels"], image_size, image_size, device="meta"))
    return FlopCount(**counts)
