import exllamav2_ext  # noqa: F401  registers its operators
import torch

tensor = torch.ones(5)
torch.ops.exllamav2_ext.scale(tensor, 3.0)
assert torch.ops.exllamav2_ext.sum(tensor) == 15.0, tensor
