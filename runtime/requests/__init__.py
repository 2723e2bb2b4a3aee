"""Requests, from arrival to end: pieces, schedule, drafts, sampling and text. Knows no graph."""
