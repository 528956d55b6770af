"""Figures of a sweep: pure functions from its result to plain figures, words and rows."""
