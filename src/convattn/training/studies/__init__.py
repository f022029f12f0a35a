"""Recipes × seeds, run in processes of their own on one machine or on a Ray cluster, and compared."""

from convattn.training.studies.engine import Engine, LocalEngine
from convattn.training.studies.ray_engine import RayEngine
from convattn.training.studies.record import StudyRecord
from convattn.training.studies.run import study

__all__ = ["Engine", "LocalEngine", "RayEngine", "StudyRecord", "study"]
