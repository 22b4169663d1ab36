from ._native import targets

__all__ = ["targets"]
