"""The paper's tables and figures, made from training runs."""

from convattn.analysis.reproduction.record import MissingRun, Reproduction, TargetResult
from convattn.analysis.reproduction.run import reproduce
from convattn.analysis.reproduction.targets import TARGETS

__all__ = ["TARGETS", "MissingRun", "Reproduction", "TargetResult", "reproduce"]
