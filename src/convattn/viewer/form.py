"""The form of a scene's header, as `docs/viewer.md` describes it; `convattn.fields` reads it and checks every value."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from convattn.fields import Range

Count = Annotated[int, Range(1)]
Pair = tuple[int, int]
Place = tuple[float, float]
Positive = Annotated[float, Range(0, without_low=True)]
Step = tuple[Positive, Positive]


@dataclass(frozen=True)
class ImageForm:
    """An image; `picture` names a tensor, as all fields do whose text begins with "tensors/"."""

    name: str
    label: str | None
    picture: str
    note: str = ""  # What the picture does not show


@dataclass(frozen=True)
class PlaceForm:
    """Where queries lie on the image."""

    first: Place
    step: Step


@dataclass(frozen=True)
class KeysForm:
    """Where keys lie on the image."""

    grid: Pair
    first: Place
    step: Step


@dataclass(frozen=True)
class QueriesForm:
    """Where queries stand among the keys."""

    first: Pair
    stride: tuple[Count, Count]


@dataclass(frozen=True)
class HeadsForm:
    """Heads of displacements."""

    encoding: str
    centres: str | None
    sharpness: str | None


@dataclass(frozen=True)
class PaddingForm:
    """How keys are made of features."""

    pairs: tuple[Pair, Pair]
    mode: Literal["zeros", "reflect", "replicate", "circular"]
    spread: tuple[Count, Count]


@dataclass(frozen=True)
class PositionForm:
    """Attention by displacement."""

    kind: Literal["position"]
    scores: str | None
    axes: tuple[str, str] | None
    queries: QueriesForm
    heads: HeadsForm
    values: str | None
    bias: str | None
    padding: PaddingForm
    groups: Count


@dataclass(frozen=True)
class MapsForm:
    """Attention that depends on the image."""

    kind: Literal["maps"]
    parts: tuple[Literal["both", "position", "content"], ...]
    position: PositionForm | None
    queries: str
    keys: str
    allowed: str | None
    signed: bool
    stored: bool
    images: tuple[Any, ...]


@dataclass(frozen=True)
class StatisticForm:
    """A number of a head, or two, with standard errors."""

    value: Any
    error: Any


@dataclass(frozen=True)
class LayerForm:
    """A layer."""

    name: str
    kind: str
    pattern: str
    heads: Count
    grid: tuple[Count, Count]
    normalised: bool
    place: PlaceForm
    keys: KeysForm
    prefix: tuple[str, ...]
    sentence: str | None
    statistics: tuple[dict[str, StatisticForm], ...] | None
    attention: PositionForm | MapsForm


@dataclass(frozen=True)
class InputForm:
    """What a network takes."""

    rows: Count
    cols: Count
    mean: tuple[float, ...]
    std: tuple[Positive, ...]


@dataclass(frozen=True)
class TimelineForm:
    """Where heads were during the training."""

    epochs: tuple[float, ...]
    centres: str
    sharpness: str
    layers: tuple[int, ...]


@dataclass(frozen=True)
class NetworkForm:
    """A network."""

    name: str
    title: str
    note: str
    classes: tuple[str, ...] | None
    input: InputForm | None
    program: tuple[dict[str, Any], ...] | None
    layers: tuple[LayerForm, ...]
    timeline: TimelineForm | None


@dataclass(frozen=True)
class SceneForm:
    """The whole header."""

    schema: int
    title: str
    images: tuple[ImageForm, ...]
    networks: tuple[NetworkForm, ...]
