"""Saving and loading of networks, in a folder or on the Hugging Face Hub."""

import copy
import json
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from huggingface_hub import PyTorchModelHubMixin
from huggingface_hub.constants import CONFIG_NAME, SAFETENSORS_SINGLE_FILE
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import nn

from convattn.errors import CheckpointError, UnsupportedModelError

__all__ = ["HubModel"]

_Model = TypeVar("_Model", bound="HubModel")

_HUB_OPTIONS = {"revision", "cache_dir", "force_download", "local_files_only", "token"}


class HubModel(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="convattn",
    license="apache-2.0",
    paper_url="https://arxiv.org/abs/1911.03584",
):
    """A network with `save_pretrained`, `from_pretrained` and `push_to_hub`.

    A saved network is ``model.safetensors`` (weights) and ``config.json`` (the constructor's arguments, and the class
    under the key "architecture"). Loading demands that the weights fit exactly: a network with weights left at random
    is worse than none.
    """

    def _copy(self: _Model, **arguments: Any) -> _Model:
        """Copies the network; the copy's configuration has other arguments, which its modules are yet to follow."""
        made = copy.deepcopy(self)
        made._hub_mixin_config = {**cast(dict[str, Any], self._hub_mixin_config), **arguments}
        return made

    def _save_pretrained(self, save_directory: Path) -> None:
        """Writes the weights and the configuration, into a folder that the mixin has made."""
        arguments = cast(dict[str, Any], self._hub_mixin_config)
        self._require_loadable(arguments)
        super()._save_pretrained(save_directory)
        config = {"architecture": type(self).__name__, **arguments}
        (save_directory / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def _require_loadable(self, arguments: dict[str, Any]) -> None:
        """Refuses a network whose tensors are not those of a new one with its arguments: it would not load."""
        with torch.device("meta"):
            plain = type(self)(**arguments).state_dict()
        found = self.state_dict()
        differing = sorted(
            name
            for name in {*found, *plain}
            if name not in found or name not in plain or found[name].shape != plain[name].shape
        )
        if differing:
            shown = ", ".join(differing[:3]) + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")
            raise UnsupportedModelError(
                f"cannot save {type(self).__name__}: it would not load, because its layers are not those of its"
                f" arguments ({shown}); convattn.save_network saves a converted network"
            )

    @classmethod
    def _from_pretrained(cls, *, model_id: str, map_location: str = "cpu", strict: bool = True, **options: Any) -> Any:
        """Loads weights that fit exactly; the mixin's own method would skip those that are missing."""
        folder = Path(model_id)
        try:
            if not folder.is_dir():
                return super()._from_pretrained(model_id=model_id, map_location=map_location, strict=strict, **options)
            for name in (CONFIG_NAME, SAFETENSORS_SINGLE_FILE):
                if not (folder / name).is_file():
                    raise CheckpointError(f"{folder} holds no saved network: it has no {name}")
            arguments = {name: value for name, value in options.items() if name not in _HUB_OPTIONS}
            network = cls(**arguments)
            load_model(network, folder / SAFETENSORS_SINGLE_FILE, strict=strict, device=map_location)
        except (SafetensorError, RuntimeError) as error:
            raise CheckpointError(f"{model_id} does not hold the weights of this {cls.__name__}: {error}") from None
        return network.eval()
