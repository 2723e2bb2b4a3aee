"""What a prompt kept, as one HTML file that needs no network and nothing beside it.

`prompt` lays tokens over the characters of the prompt, `data` packs what each KV head kept,
`render` fills assets/template.html with both and with the other assets, `whole_file` writes it.
"""

from snapexport.cli.page.prompt import TokenizedPrompt
from snapexport.cli.page.render import render
from snapexport.cli.page.whole_file import whole_file

__all__ = ["TokenizedPrompt", "render", "whole_file"]
