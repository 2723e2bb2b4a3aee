"""Further prefill graphs take chunks of fewer tokens, for turns and a prompt's rest."""
