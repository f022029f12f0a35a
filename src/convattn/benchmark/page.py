"""The page layers.md: tables, environment, how to repeat, and what is not measured."""

from collections.abc import Iterable, Sequence

from convattn.benchmark.network_record import NetworksRecord
from convattn.benchmark.record import BenchmarkRecord
from convattn.benchmark.report import COLUMNS, case_rows, scaling_columns, scaling_rows

__all__ = ["environment", "items", "layers_page", "table"]


def layers_page(record: BenchmarkRecord, figure: str | None) -> str:
    """Writes the page.

    Args:
        record: What was found.
        figure: Name of the figure beside the page; None where there is none.

    Returns:
        Markdown.
    """
    parts = [_opening(record), _reading(), _tables(record)]
    if record.scaling:
        parts.append(_scaling(record, figure))
    parts += [_missing(record), _environment(record), _limits(record)]
    return "\n".join(part for part in parts if part)


def _opening(record: BenchmarkRecord) -> str:
    verdict = "Every check passed." if record.passed else "**A check FAILED; what is wrong has no times.**"
    tiny = "\n\nThese sizes are tiny (`--quick`): the times say nothing about speed." if record.quick else ""
    return (
        "# How fast are the layers?\n\n"
        "Relative attention against its peers, measured by `convattn bench`. Each contender that computes the layer's "
        "function\nis first held against the definition of attention in float64; then all take turns in one process. "
        f"{verdict}{tiny}\n"
    )


def _reading() -> str:
    return """\
## How to read the tables

- **check**: "passed" means that every error is within the error budget 2 (max|lo − hi| + eps · max|hi|), where hi is
  the definition in float64 and lo the definition in the tested dtype, from the images and from images rounded
  otherwise. Outputs are compared, and where gradients are taken those of the images and of every parameter. "time
  only" marks another function.
- **ms** is the median over the rounds of one call, **min – max** its extremes.
- **÷ nn.Conv2d** and **× faster than …** are medians of the ratios of one round, with their extremes. The convolution
  is 3 × 3 with as many channels. "published" is the formulation of the paper and its networks: scores of all pairs of
  pixels, a softmax, one einsum. "reference" is this library's readable path, which makes the weights once for all
  images and multiplies them in one product.
- **MiB** is the largest memory of one call beyond weights and images, in a process of its own.
"""


def _tables(record: BenchmarkRecord) -> str:
    sections = []
    for case in record.cases:
        notes = [f"- {item.contender}: {item.note}" for item in case.measurements if item.note]
        sections.append(
            "\n".join([f"## {case.name}", "", _capital(case.title) + ".", "", *table(COLUMNS, case_rows(case))])
        )
        sections[-1] += "\n\n" + "\n".join(notes) + "\n"
    return "\n".join(sections)


def _scaling(record: BenchmarkRecord, figure: str | None) -> str:
    rows = table(scaling_columns(record.scaling), scaling_rows(record.scaling))
    notes = [f"- {curve.path}: {curve.note}" for curve in record.scaling]
    drawing = [f"![Time against the number of pixels]({figure})", ""] if figure else []
    fitted = any(curve.exponent is not None for curve in record.scaling)
    meaning = " The exponent p is that of the least-squares fit of time to N^p." if fitted else ""
    title = f"{_capital(record.scaling_title)}.{meaning}"
    return "\n".join(["## Scaling", "", title, "", *drawing, *rows, "", *notes, ""])


def _missing(record: BenchmarkRecord) -> str:
    if not record.missing:
        return ""
    return "\n".join(["## Peers that are not installed", "", *items(record.missing), ""])


def _environment(record: BenchmarkRecord) -> str:
    lines = environment(record, {"rounds": str(record.rounds)})
    return "\n".join([*lines, "All times are in [layers.json](layers.json).", ""])


def environment(record: BenchmarkRecord | NetworksRecord, extra: dict[str, str]) -> list[str]:
    """Lists how and where something was measured.

    Args:
        record: What was found.
        extra: Further lines.

    Returns:
        Lines of Markdown.
    """
    lines = {
        **{name.replace("_", " "): value for name, value in record.hardware.items()},
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "dtype": record.dtype + (", TensorFloat-32 off" if record.dtype == "float32" else ""),
        **extra,
        "started": record.started,
        "time of everything": f"{record.seconds:.0f} s",
        "revision": record.revision or "unknown",
    }
    return ["## How it was measured", "", f"    {record.command}", "", *items(lines), ""]


def _limits(record: BenchmarkRecord) -> str:
    return "\n".join(["## What is not measured", "", *(f"- {item}" for item in record.not_covered), ""])


def items(values: dict[str, str]) -> list[str]:
    """Writes a list of names and values."""
    return [f"- {name}: {value}" for name, value in values.items()]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Writes a table."""
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
