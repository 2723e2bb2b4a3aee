"""Changes the logits that a request's next token is chosen from."""
