"""Writes the kept positions of a prompt as one HTML file that needs no network and no other file.

`data` lays tokens over the prompt's characters and packs the kept positions, `render` fills
assets/template.html with them, `whole_file` writes the page.
"""

from snapexport.cli.page.data import TokenizedPrompt
from snapexport.cli.page.render import render
from snapexport.cli.page.whole_file import whole_file

__all__ = ["TokenizedPrompt", "render", "whole_file"]
