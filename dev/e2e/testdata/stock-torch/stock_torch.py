import stock_torch_ops  # noqa: F401
import torch


def answer():
    return int(torch.ops.stock_torch.twice(torch.tensor([21]))[0])
