import torch
import _ordinary


class Odd(torch.Tensor):
    """A tensor that answers itself whether it is contiguous: torch asks by a virtual function."""

    @staticmethod
    def __new__(cls, size):
        return torch.Tensor._make_wrapper_subclass(cls, size, dispatch_sizes_strides_policy="strides")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("is_contiguous", "sym_is_contiguous"):
            return True
        raise AssertionError("torch was asked for " + name)


def raises(call, text):
    try:
        call()
    except RuntimeError as e:
        return text in str(e)
    return False


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
    assert _ordinary.contiguous(Odd((2, 3)))
    assert raises(_ordinary.fails, "as it should")
    if hasattr(_ordinary, "gpus"):
        assert _ordinary.gpus() == torch.cuda.device_count()
        assert raises(_ordinary.cuda_fails, "CUDA error")
        if _ordinary.gpus() == 0:
            assert raises(_ordinary.stream, "")
            assert raises(_ordinary.synchronize, "CUDA error")
        else:
            assert _ordinary.stream() == torch.cuda.current_stream(0).cuda_stream
            _ordinary.synchronize()
    return True
