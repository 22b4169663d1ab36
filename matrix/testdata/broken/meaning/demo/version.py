"""The version of the demo."""

__version__ = "0.3.2"
