"""Opens a GGUF file as a checkpoint: its config and tokenizer as files, its tensors by name.

opening: header -> config -> tensors. Of the weights only vectors are read before they are placed.
"""
