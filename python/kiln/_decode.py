"""Attention of one token to a static cache, in Triton: other kernels use a few multiprocessors of a GPU for a few rows.

The cache is cut into parts, each of which a program attends to; a second kernel joins what they found. Queries that share a
key are the rows of one product. Parts of which nothing is seen are not read, and one compilation serves every length.
"""

import torch
import triton
import triton.language as tl

_BLOCK = 64  # places of the cache at a time
_PROGRAMS = 264  # as many as fill a large GPU twice


def takes(rows, key, value, mask):
    """Whether attend can be asked: rows are [batch, heads of keys, queries for each, width]."""
    width = rows.shape[3]
    return (
        mask.dtype is torch.bool
        and mask.shape[1:3] == (1, 1)
        and mask.stride(3) == 1
        and rows.shape[2] <= 64
        and width in (16, 32, 64, 128, 256)
        and key.is_contiguous()
        and value.is_contiguous()
        and key.shape == value.shape
        and rows.dtype == key.dtype == value.dtype
        and rows.dtype in (torch.float16, torch.bfloat16)
    )


def attend(rows, key, value, mask, scale):
    batch, heads, group, width = rows.shape
    rows, length = rows.contiguous(), key.shape[2]
    blocks = triton.cdiv(length, _BLOCK)
    chunk = triton.cdiv(blocks, min(blocks, max(1, _PROGRAMS // (batch * heads)), 64)) * _BLOCK
    parts, out = triton.cdiv(length, chunk), torch.empty_like(rows)
    sums = rows.new_empty((batch * heads, parts, group, width), dtype=torch.float32) if parts > 1 else out
    marks = rows.new_empty((batch * heads, parts, group, 2), dtype=torch.float32) if parts > 1 else out
    next_mask = mask.stride(0) if mask.shape[0] > 1 else 0
    _part[(batch * heads, parts)](
        rows, key, value, mask.view(torch.uint8), sums, marks, scale, length, chunk, next_mask, heads,
        group=group, padded=max(16, triton.next_power_of_2(group)), width=width, block=_BLOCK, whole=parts == 1,
    )  # fmt: skip
    if parts > 1:
        _join[(batch * heads * group,)](sums, marks, out, parts, group=group, width=width, padded=triton.next_power_of_2(parts))
    return out


@triton.jit
def _part(
    rows, keys, values, mask, sums, marks, scale, length, chunk, next_mask, heads,
    group: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, block: tl.constexpr, whole: tl.constexpr,
):  # fmt: skip
    head, part = tl.program_id(0), tl.program_id(1)
    g, n, d = tl.arange(0, padded), tl.arange(0, block), tl.arange(0, width)
    mine = g[:, None] < group
    x = tl.load(rows + (head * group + g)[:, None] * width + d[None, :], mask=mine, other=0.0)
    top = tl.full([padded], float("-inf"), tl.float32)
    total = tl.zeros([padded], tl.float32)
    result = tl.zeros([padded, width], tl.float32)
    end = tl.minimum(part * chunk + chunk, length)
    for at in range(part * chunk, end, block):
        place = at + n
        seen = tl.load(mask + (head // heads) * next_mask + place, mask=place < end, other=0) != 0
        if tl.max(seen.to(tl.int32), 0) > 0:
            where = (head.to(tl.int64) * length + place)[:, None] * width + d[None, :]
            k = tl.load(keys + where, mask=seen[:, None], other=0.0)
            v = tl.load(values + where, mask=seen[:, None], other=0.0)
            scores = tl.where(seen[None, :], tl.dot(x, tl.trans(k)) * scale, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            weights, before = tl.exp(scores - higher[:, None]), tl.exp(top - higher)
            total = total * before + tl.sum(weights, 1)
            result = result * before[:, None] + tl.dot(weights.to(v.dtype), v)
            top = higher
    if whole:
        tl.store(sums + (head * group + g)[:, None] * width + d[None, :], (result / total[:, None]).to(x.dtype), mask=mine)
    else:
        to = (head * tl.num_programs(1) + part) * group + g
        tl.store(sums + to[:, None] * width + d[None, :], result, mask=mine)
        tl.store(marks + to * 2, top, mask=g < group)
        tl.store(marks + to * 2 + 1, total, mask=g < group)


@triton.jit
def _join(sums, marks, out, parts, group: tl.constexpr, width: tl.constexpr, padded: tl.constexpr):
    row = tl.program_id(0)
    p, d = tl.arange(0, padded), tl.arange(0, width)
    at = (row // group * parts + p) * group + row % group
    top = tl.load(marks + at * 2, mask=p < parts, other=float("-inf"))
    total = tl.load(marks + at * 2 + 1, mask=p < parts, other=0.0)
    weights = tl.exp(top - tl.max(top, 0))
    part = tl.load(sums + at[:, None] * width + d[None, :], mask=p[:, None] < parts, other=0.0)
    result = tl.sum(part * weights[:, None], 0) / tl.sum(total * weights, 0)
    tl.store(out + row * width + d, result.to(out.dtype.element_ty))
