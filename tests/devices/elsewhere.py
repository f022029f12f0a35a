"""A second device, made of the CPU: its tensors hold numbers, and may not be computed with those of the CPU.

So a tensor that a function makes on the wrong device is found where there is no GPU: as on one, the operation raises.
`register` makes the device known in a process, for good: call it in one of its own, as often as you like.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "elsewhere"


class _Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.float16, torch.bfloat16]


VIEWS = {
    *(
        "alias",
        "as_strided",
        "detach",
        "diagonal",
        "expand",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
    ),
    *(
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
        "_unsafe_view",
    ),
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),  # memory alone
    *("can_cast", "promote_types", "result_type"),  # no tensor
}
"""Operations that start no kernel on a GPU."""

kernels = Counter()
"""Operations that start one, since `watch` began."""

crossings = Counter()
"""Operations that move numbers between the device and the CPU, for which the program or the device waits."""


@contextmanager
def watch() -> Iterator[None]:
    """Counts anew."""
    kernels.clear()
    crossings.clear()
    yield


def register():
    if kept:
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    fallthrough = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    fallthrough.fallback(torch.library.fallthrough_kernel)
    kept.append(fallthrough)


kept = []
"""What goes when nothing refers to it."""


class There(Tensor):
    """A tensor of the device; `here` holds its numbers."""

    @staticmethod
    def __new__(cls, here):
        options = {
            "strides": here.stride(),
            "storage_offset": here.storage_offset(),
            "dtype": here.dtype,
        }
        made = Tensor._make_wrapper_subclass(
            cls, here.shape, device=torch.device(NAME, 0), **options
        )
        made.here = here
        return made

    def __repr__(self):
        return f"There({self.here!r})"

    def tolist(self):
        crossings["tolist"] += 1
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, _, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """Inside it functions can make tensors of the device."""

    def __enter__(self):
        self._tensor, torch.tensor = (
            torch.tensor,
            _made,
        )  # which asks for memory before any mode sees it
        return super().__enter__()

    def __exit__(self, *raised):
        torch.tensor = self._tensor
        return super().__exit__(*raised)

    def __torch_dispatch__(self, func, _, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


_tensor = torch.tensor


def _is_there(device):
    return device is not None and torch.device(device).type == NAME


def _made(data, *, device=None, **options):
    made = _tensor(data, device="cpu" if _is_there(device) else device, **options)
    if not _is_there(device):
        return made
    crossings["tensor"] += 1
    return There(made)


def _run(func, args, kwargs):
    """Computes on the CPU; the result is on the device of what is given, or on the one that is asked for."""
    name, given = func.name().split(".")[0], tree_leaves((args, kwargs))
    there = any(isinstance(part, There) for part in given)
    here = any(
        isinstance(part, Tensor) and not isinstance(part, There) and part.ndim for part in given
    )
    mixing = name in ("aten::_to_copy", "aten::copy_") or (
        name == "aten::index" and isinstance(args[0], There)
    )
    if there and here and not mixing:
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, but found {NAME} and cpu"
        )
    short, device = name.removeprefix("aten::"), kwargs.get("device")
    if short not in VIEWS:
        kernels[short] += 1
    moves = device is not None and _is_there(device) != there
    if short == "copy_":
        moves = there and here
    if short in ("_local_scalar_dense", "nonzero") or (moves and short in ("_to_copy", "copy_")):
        crossings[short] += 1
    if device is not None:
        there = _is_there(kwargs["device"])
        kwargs = {**kwargs, "device": "cpu"}
    args, kwargs = tree_map(on_cpu, (args, kwargs))
    out = func(*args, **kwargs)
    if name.endswith("_"):
        return given[0]
    return tree_map(lambda part: There(part) if there and isinstance(part, Tensor) else part, out)


def on_cpu(part):
    """Returns the numbers of a tensor of the device, and all else as it is."""
    return part.here if isinstance(part, There) else part


def put_there(module):
    """Puts the parameters and buffers of a module on the device, in place."""
    for one in module.modules():
        for name, value in one._parameters.items():
            if value is not None:
                one._parameters[name] = nn.Parameter(
                    There(value.detach()), requires_grad=value.requires_grad
                )
        for name, value in one._buffers.items():
            if value is not None:
                one._buffers[name] = There(value)
    return module
