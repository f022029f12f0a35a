"""The tasks, in the order of the page."""

from benchmarks.real_weights.faces import FACES
from benchmarks.real_weights.notes import NOTES
from benchmarks.real_weights.pitch import PITCH
from benchmarks.real_weights.speech import SPEECH
from benchmarks.real_weights.task import Subject
from benchmarks.real_weights.text import TEXT

__all__ = ["SUBJECTS"]

SUBJECTS: dict[str, Subject] = {
    subject.name: subject for subject in (FACES, TEXT, PITCH, SPEECH, NOTES)
}
"""Every task by its name."""
