"""The tasks, in the order of the page."""

from evidence.real_weights.faces import FACES
from evidence.real_weights.notes import NOTES
from evidence.real_weights.pitch import PITCH
from evidence.real_weights.speech import SPEECH
from evidence.real_weights.task import Subject
from evidence.real_weights.text import TEXT

SUBJECTS: dict[str, Subject] = {
    subject.name: subject for subject in (FACES, TEXT, PITCH, SPEECH, NOTES)
}
"""Every task by its name."""
