"""Further tokens are taken onto a compressed cache, such as a turn of a chat (--extend)."""
