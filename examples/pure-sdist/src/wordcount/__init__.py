"""Counts words."""

from collections import Counter


def count(text):
    """How often each word of a text occurs."""
    return Counter(text.split())
