"""Pseudo tokens vote as a prompt's own last tokens do: by the window of the last chunk."""

from snapexport.methods.window_vote.surgery import WindowVote

SURGERY = WindowVote()
