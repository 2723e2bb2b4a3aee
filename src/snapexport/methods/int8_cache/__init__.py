"""Compressed caches hold integers of 8 bits, with scales for each request, KV head and channel."""
