"""The tensors of a network: collected for a file, each once, and put back; weights of other programs."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from convattn.errors import CheckpointError, UnsupportedModelError
from convattn.files import AnyPath
from convattn.structure import dtype_name
from convattn.wording import some


def file_tensors(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors to write, and for each name left out the name of the tensor that it is tied to.

    Raises UnsupportedModelError unless every entry of the state dict is a dense tensor with values.
    """
    names: dict[tuple[Any, ...], str] = {}
    tensors: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in network.state_dict().items():
        _require_plain(name, tensor)
        storage = tensor.untyped_storage().data_ptr()
        layout = (tensor.storage_offset(), tensor.shape, tensor.stride())
        view = (tensor.device, storage, tensor.dtype, *layout)
        if tensor.numel() and view in names:
            tied[name] = names[view]
        else:
            names[view] = name
            tensors[name] = tensor
    return tensors, tied


def describe_tensors(network: nn.Module) -> dict[str, Any]:
    """Describes what a file of tensors does not hold, as JSON types.

    "frozen" lists the parameters without gradients, "strides" the strides that differ from those of a new tensor, and
    "buffers" the dtypes of floating-point buffers that are not in the state dict.
    """
    state = network.state_dict()
    frozen = [name for name, tensor in network.named_parameters() if not tensor.requires_grad]
    strides = {}
    for name, tensor in state.items():
        usual = torch.empty(tensor.shape, device="meta").stride()
        if tensor.stride() != usual and _is_whole(tensor):
            strides[name] = list(tensor.stride())
    buffers = {}
    for name, buffer in network.named_buffers(remove_duplicate=False):
        if name not in state and buffer.is_floating_point():
            buffers[name] = dtype_name(buffer.dtype)
    return {"frozen": frozen, "strides": strides, "buffers": buffers}


def load_tensors(
    network: nn.Module, tensors: Mapping[str, Tensor], described: Mapping[str, Any]
) -> None:
    """Gives a network the tensors of a file in place of its own.

    `described` has what `describe_tensors` returned, and under "tied", for each tensor left out, the one that it is
    tied to. Other names or shapes raise CheckpointError.
    """
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    values = {}
    for name, tensor in tensors.items():
        value = _laid_out(tensor, described["strides"].get(name))
        if name in parameters:
            value = nn.Parameter(value, requires_grad=False)
        values[name] = value
    for name, other in described["tied"].items():
        if other not in tensors:
            raise CheckpointError(f"{name} is tied to {other}, which is not there")
        values[name] = values[other]
    require_same(network.state_dict(), values)
    network.load_state_dict(values, assign=True)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name not in described["frozen"])
    for name, dtype in described["buffers"].items():
        place, _, key = name.rpartition(".")
        module = network.get_submodule(place)
        module._buffers[key] = module.get_buffer(key).to(getattr(torch, dtype))


def require_same(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError, naming the tensors, if names or shapes differ from the network's."""
    shapes = []
    for name, tensor in expected.items():
        if name in tensors and tensors[name].shape != tensor.shape:
            shapes.append(f"{name} {tuple(tensors[name].shape)} for {tuple(tensor.shape)}")
    differences = {
        "missing": [name for name in expected if name not in tensors],
        "unexpected": [name for name in tensors if name not in expected],
        "of another shape": shapes,
    }
    messages = []
    for kind, names in differences.items():
        if names:
            messages.append(f"{len(names)} {kind}: {some(names)}")
    if messages:
        raise CheckpointError("; ".join(messages))


def _require_plain(name: str, tensor: object) -> None:
    """Refuses what a file of tensors cannot hold."""
    if not isinstance(tensor, Tensor):
        raise UnsupportedModelError(f"its {name} is a {type(tensor).__name__} and no tensor")
    if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
        raise UnsupportedModelError(f"its {name} is lazy and not initialised")
    if tensor.is_meta:
        raise UnsupportedModelError(f"its {name} is on the meta device and has no values")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedModelError(f"its {name} is sparse or quantised")


def _laid_out(tensor: Tensor, strides: list[int] | None) -> Tensor:
    """Copies a tensor to given strides, on which the last bits of a product depend."""
    if strides is None:
        return tensor
    can_be = len(strides) == tensor.ndim and min(strides, default=0) >= 0
    if not can_be or not _is_whole(torch.empty_strided(tensor.shape, strides, device="meta")):
        raise CheckpointError(
            f"a tensor of shape {tuple(tensor.shape)} cannot have the strides {strides}"
        )
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _is_whole(tensor: Tensor) -> bool:
    """Returns whether a tensor fills the memory that it spans, without gaps; then a new one like it has its strides."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def load_weights(network: nn.Module, file: AnyPath) -> None:
    """Gives a network the weights in a file: a state dict in safetensors, or as `torch.save` writes it.

    In a pickled file it may also be under "state_dict"; it is read by torch's reader of weights alone, which runs no
    code of the file. Raises CheckpointError if the file cannot be read, or has other names, shapes or kinds of number.
    """
    path = Path(file)
    weights = _read_state_dict(path)
    expected = network.state_dict()
    try:
        require_same(expected, weights)
        for name, tensor in expected.items():
            # torch would take quantised weights as they are, without their scale
            if tensor.is_floating_point() and not weights[name].is_floating_point():
                raise CheckpointError(
                    f"{name} must hold floating-point numbers, not {weights[name].dtype}"
                )
    except CheckpointError as error:
        raise CheckpointError(
            f"the weights in {path} do not fit {type(network).__name__}: {error}"
        ) from None
    network.load_state_dict(weights)


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    start = f"cannot read weights from {path}: "
    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's own words advise to run what the file holds
        reason = "it is no file of torch.save, or holds more than tensors, which is not loaded"
        raise CheckpointError(f"{start}UnpicklingError: {reason}") from None
    except Exception as error:  # noqa: BLE001 - the reader of a damaged file may raise any error
        reason = str(error).partition("\n")[0] or "it may be empty or cut short"
        raise CheckpointError(f"{start}{type(error).__name__}: {reason}") from None
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    are_named = isinstance(content, Mapping) and all(isinstance(name, str) for name in content)
    if not are_named or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise CheckpointError(f"{start}it holds no state dict: tensors by their names")
    return dict(content)
