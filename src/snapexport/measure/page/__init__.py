"""Writes the kept positions of a prompt as one HTML file that needs no network and no other file.

`data` lays tokens over the prompt's characters and packs the kept positions, `render` fills
assets/template.html with them.
"""

from snapexport.measure.page.data import TokenizedPrompt
from snapexport.measure.page.render import render

__all__ = ["TokenizedPrompt", "render"]
