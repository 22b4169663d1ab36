from ._native import count, total

__all__ = ["count", "total"]
