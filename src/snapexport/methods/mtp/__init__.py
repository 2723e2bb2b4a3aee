"""A layer of the checkpoint for multi-token prediction drafts a further token (DeepSeek-V3)."""
