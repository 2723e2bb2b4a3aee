"""The laboratory: studies of speed and quality. It imports anything, and nothing imports it."""
