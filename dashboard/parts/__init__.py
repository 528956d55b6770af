"""Pieces of pages that several of them use."""
