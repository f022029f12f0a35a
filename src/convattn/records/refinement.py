"""Results of fitting converted convolutions to the attention that they replace."""

from dataclasses import dataclass

from convattn.records.network_certificate import LeftAlone
from convattn.records.record import Record


@dataclass(frozen=True)
class RefinedLayer(Record):
    """One convolution fitted to the attention layer that it replaces."""

    name: str  # Where it stands in the network
    before: float  # Root mean square of its output's difference to the attention layer's, on images held out of the fit
    after: float  # The same afterwards
    scale: float  # Root mean square of the attention layer's output there
    kept: bool  # Whether the fit was kept: it is if it helped on the images held out


@dataclass(frozen=True)
class Refinement(Record):
    """Results of a refinement, on images that were not used for fitting."""

    layers: tuple[RefinedLayer, ...]  # The convolutions, in the order in which they compute
    left_alone: tuple[LeftAlone, ...]  # The convolutions that were not fitted
    ridge: float  # Share of the mean square of the inputs that holds weights where they were
    fitted: int  # Number of images for the fits
    held_out: int  # Number of images for the numbers here
    before: float  # Root mean square of the whole network's output difference, before
    after: float  # The same afterwards
    scale: float  # Root mean square of the attention network's output
    # Images held out whose largest output differs from that with attention; None if outputs are not rows of scores
    top1_changed_before: int | None
    top1_changed_after: int | None  # The same afterwards

    def summary(self) -> str:
        """Returns the refinement in a few lines of plain text."""
        lines = [
            f"refined on {self.fitted} images, measured on {self.held_out} others (root mean squares)",
            f"  end to end      {self.before:.3g} before, {self.after:.3g} after, of {self.scale:.3g}",
        ]
        if self.top1_changed_before is not None:
            lines.append(f"  top-1 changed   {self.top1_changed_before} before, {self.top1_changed_after} after")
        for layer in self.layers:
            kept = "" if layer.kept else ", not kept"
            lines.append(
                f"  layer           {layer.name}: {layer.before:.3g} before, {layer.after:.3g} after, of"
                f" {layer.scale:.3g}{kept}"
            )
        lines += [f"  left alone      {item.summary()}" for item in self.left_alone]
        return "\n".join(lines)
