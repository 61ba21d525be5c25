"""Replay, comparison and recommendation on the user's own run."""
