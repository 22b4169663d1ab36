import torch
import _ordinary


def check():
    """What inline code reads must be what torch says."""
    x = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)[:, 1:]
    y = x.transpose(1, 2)
    assert _ordinary.facts(x) == [list(x.shape), list(x.stride()), [x.storage_offset(), x.numel(), x.dim(), x.element_size()]], _ordinary.facts(x)
    assert _ordinary.contiguous(y) == y.is_contiguous()
    assert _ordinary.references(x.clone()) >= 1
    z = _ordinary.twice(x)
    assert torch.equal(z, x * 2), z
    for _ in range(1000):  # counts of references that are wrong show here
        z = _ordinary.twice(z) / 2
    assert torch.equal(z, x * 2)
    assert _ordinary.bytes(x) == x.untyped_storage().nbytes()
    try:
        _ordinary.fails()
    except RuntimeError as e:
        assert "as it should" in str(e)
    else:
        raise AssertionError("no exception")
    return True
