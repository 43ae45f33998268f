"""T: laws of training scripts, next to the task or the plain loop that computes the same."""

from paceline.laws.lab import Law
from paceline.laws.scripts import gradients, loops

LAWS: tuple[Law, ...] = (*loops.LAWS, *gradients.LAWS)
