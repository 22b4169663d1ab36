import torch  # before the extension, which needs its libraries

import stock_torch_ops  # noqa: F401


def answer():
    return int(torch.ops.stock_torch.twice(torch.tensor([21]))[0])
