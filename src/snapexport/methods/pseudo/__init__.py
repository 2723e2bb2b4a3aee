"""The queries of pseudo tokens vote, which the model writes after a prompt and then forgets."""
