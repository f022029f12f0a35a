"""The demo's page: one HTML file with its pictures inside, made from the demo's record."""

import base64
from collections.abc import Mapping
from html import escape
from pathlib import Path

from convattn.cli.demo_record import Conversion, Demonstration
from convattn.files import write_atomically
from convattn.records import Certificate

__all__ = ["write_page"]

_STYLE = """
:root { color-scheme: light; }
body { font: 1.05rem/1.55 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.5rem; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; height: auto; }
figcaption, caption { color: #444; text-align: left; }
table { border-collapse: collapse; margin: 1.5rem 0; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 1.5rem 0.3rem 0; border-bottom: 1px solid #ccc; }
code, pre { font-size: 0.95em; background: #f3f3f3; }
pre { padding: 0.8rem; overflow-x: auto; }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>convattn: self-attention that is a convolution</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>Self-attention that is a convolution</h1>
<p>A convolution with a 3 × 3 kernel is nine shifted copies of the image, weighted and summed. A head of self-attention
that attends to one pixel at a fixed shift makes such a copy; so nine heads can compute any 3 × 3 convolution
(<a href="https://arxiv.org/abs/1911.03584">Cordonnier, Loukas and Jaggi, 2020</a>). Both directions of that thought are
shown here with real images: a convolution becomes attention, and attention learns by itself where to look.</p>

<h2>A convolution becomes attention</h2>
<p>The four filters of this convolution find edges and blur. <code>conv_to_attention</code> turned it into an
attention layer of nine heads, one for each weight of a kernel. The heads attend to a pixel at shift δ with weight
exp(−α‖δ − Δ‖²), normalised: Δ is the head's own shift, and α says how sharply it looks.</p>
{hard_figure}
{hard_certificate}
<p>With softer heads, of sharpness α = {soft_sharpness:.3g} per pixel², each also sees its pixel's neighbours, and the
difference grows. The certificate bounds by how much.</p>
{soft_figure}
{soft_certificate}

<h2>Attention learns where to look</h2>
<p>A network with attention only ({layers} layers of {heads} heads, {parameters:,} parameters) was trained to read
handwritten digits: {train:,} images to learn from, {test:,} to be tested on.</p>
{accuracy}
{heads_figure}

<h2>What is in this folder</h2>
{contents}
<p>Everything that this page says is in <code>demo.json</code>. The run's <code>record.json</code> has what is needed
to repeat it: <code>{command}</code></p>
<p>Photograph: {photograph}; it and the digits come with scikit-learn.</p>
</main>
</body>
</html>
"""

_CONTENTS = {
    "convolution": "the convolution: input of convattn convert",
    "attention": "the attention layer made from it with hard heads, and certificate.json",
    "run": "the training run: recipe, metrics, heads over time, weights, record",
    "demo.json": "everything that was measured",
}


def write_page(shown: Demonstration, folder: Path) -> Path:
    """Writes `index.html`, with the pictures inside.

    Args:
        shown: What the demo showed.
        folder: Folder with the figures that it names.

    Returns:
        The page.
    """
    hard, soft = shown.conversions
    run, model = shown.run, shown.run.recipe["model"]
    page = _PAGE.format(
        style=_STYLE,
        hard_figure=_conversion_figure(folder, hard),
        hard_certificate=_certificate(hard),
        soft_sharpness=soft.certificate.sharpness,
        soft_figure=_conversion_figure(folder, soft),
        soft_certificate=_certificate(soft),
        layers=model["depth"],
        heads=model["heads"],
        parameters=run.parameters,
        train=run.data.counts["train"],
        test=run.data.counts["test"],
        accuracy=_run_table(shown),
        heads_figure=_heads_figure(folder, shown),
        contents=_table("Files", _CONTENTS),
        command=escape(run.command),
        photograph=escape(shown.photograph),
    )
    return write_atomically(folder / "index.html", page)


def _heads(certificate: Certificate) -> str:
    """Returns how sharp heads are, in words."""
    return (
        "hard heads" if certificate.sharpness is None else f"heads of sharpness {certificate.sharpness:.6g} per pixel²"
    )


def _conversion_figure(folder: Path, conversion: Conversion) -> str:
    certificate = conversion.certificate
    alternative = (
        f"The photograph, the attention of one pixel by {_heads(certificate)}, and for each of four "
        "filters its kernel, the convolution's output, the attention's output, and their difference, which is at most "
        f"{conversion.exact_difference / conversion.unit:.2g} roundings."
    )
    caption = (
        "Right: attention of the nine-headed layer minus the convolution computed in float64, in units of what "
        f"rounding to {certificate.dtype} changes the largest output by. Largest difference: "
        f"{conversion.exact_difference:.2g}, or {conversion.exact_difference / conversion.unit:.2g} roundings; the "
        "convolution itself, computed in "
        f"{certificate.dtype}, is off by {conversion.rounding / conversion.unit:.2g}."
    )
    return _figure(folder / conversion.figure, alternative, caption)


def _heads_figure(folder: Path, shown: Demonstration) -> str:
    model, epochs = shown.run.recipe["model"], shown.run.recipe["training"]["epochs"]
    alternative = (
        f"Two rows of {model['depth']} panels, one for each layer: the centres of the {model['heads']} heads at the "
        f"start and after {epochs} epochs, with circles."
    )
    patch = model["patch"]
    grid = f" A pixel of these layers is a patch of {patch} × {patch} pixels of the image." if patch > 1 else ""
    caption = (
        "Where each head looks, seen from the pixel that asks (the crossing of the grey lines): at the start, drawn at "
        f"random, and after {epochs} epochs. Solid circles hold 50 % of a head's attention, dashed ones 90 %."
        f"{grid}"
    )
    return _figure(folder / shown.heads, alternative, caption)


def _certificate(conversion: Conversion) -> str:
    certificate = conversion.certificate
    allowed = (
        f"{certificate.bound + certificate.rounding:.3g} = bound {certificate.bound:.3g} + rounding "
        f"{certificate.rounding:.3g}"
    )
    rows = {
        "verdict": f"{'passed' if certificate.passed else 'FAILED'}: "
        f"{'exact but for rounding' if certificate.exact else 'approximate'}",
        "convolution": certificate.source,
        "attention": certificate.result,
        "heads": _heads(certificate),
        "attention off a head's own pixel": f"at most {certificate.leak:.3g}",
        "measured error": f"{certificate.measured_error:.3g} on standard normal input {certificate.check_shape}",
        "allowed error": allowed,
        "not covered": "; ".join(certificate.not_covered) or "nothing",
    }
    return _table("Certificate", rows)


def _run_table(shown: Demonstration) -> str:
    run = shown.run
    accuracy = run.results["test_accuracy"]
    rows = {
        "test accuracy": f"{accuracy:.2%} ({round(accuracy * run.data.counts['test'])} of {run.data.counts['test']})",
        "asked for": f"{shown.least_accuracy:.0%}: {'reached' if accuracy >= shown.least_accuracy else 'NOT REACHED'}",
        "training": f"{run.recipe['training']['epochs']} epochs, seed {run.seed}, {run.seconds:.1f} s",
        "hardware": f"{run.hardware['processor']}, threads: {run.hardware['threads']}",
        "not covered": "; ".join(run.not_covered),
    }
    return _table("Training run", rows)


def _figure(path: Path, alternative: str, caption: str) -> str:
    """Returns a picture as HTML, its bytes inside."""
    data = base64.b64encode(path.read_bytes()).decode()
    image = f'<img src="data:image/png;base64,{data}" alt="{escape(alternative)}">'
    return f"<figure>\n{image}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def _table(title: str, rows: Mapping[str, str]) -> str:
    """Returns names and values as an HTML table."""
    lines = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows.items()
    )
    return f"<table>\n<caption>{escape(title)}</caption>\n{lines}\n</table>"
