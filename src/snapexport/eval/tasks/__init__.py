"""Long-context tasks, made on the spot from a seed: no outside text, no model.

A task is a file that says what it hides (haystack.py lays the noise around it); the registry has
them all by name.
"""

from snapexport.eval.tasks.registry import TASKS, filler
from snapexport.eval.tasks.sample import Sample
from snapexport.eval.tasks.task import Task

__all__ = ["TASKS", "Sample", "Task", "filler"]
