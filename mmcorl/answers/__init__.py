"""Answers found in a response, brought to one form, compared: one relation for voting, reward and grading."""

from mmcorl.answers.canonical import canonical
from mmcorl.answers.equivalence import Equivalence
from mmcorl.answers.extract import Extraction, extract

RELATION = ("mmcorl-answers", "3")
"""Name and version of the rules here, stored beside every score; any changed verdict raises the version."""

__all__ = ["RELATION", "Equivalence", "Extraction", "canonical", "extract"]
