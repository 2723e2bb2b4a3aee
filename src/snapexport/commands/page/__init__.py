"""What a prompt kept, as one HTML file that needs no network and nothing beside it.

`prompt` lays tokens over the characters of the prompt, `data` packs what each KV head kept,
`render` fills assets/template.html with both and with the other assets, `whole_file` writes it.
"""

from snapexport.commands.page.prompt import TokenizedPrompt
from snapexport.commands.page.render import render
from snapexport.commands.page.whole_file import whole_file

__all__ = ["TokenizedPrompt", "render", "whole_file"]
