import torch  # before the extension, which needs its libraries

import exllamav2_ext


def twice(value):
    return torch.ops.exllamav2.twice(torch.tensor(value)).item()
