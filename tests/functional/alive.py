"""The memory that a call holds at once."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Alive(TorchDispatchMode):
    """Notes the most bytes of tensors that are alive at once."""

    def __init__(self):
        super().__init__()
        self.bytes = {}
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.note(tensor.untyped_storage())
        return made

    def note(self, memory):
        if memory.data_ptr() not in self.bytes:
            self.bytes[memory.data_ptr()] = memory.nbytes()
            self.most = max(self.most, sum(self.bytes.values()))
            weakref.finalize(memory, self.bytes.pop, memory.data_ptr(), None)
