import torch  # before the extension, which needs its libraries

import flash_attn_2_cuda

__version__ = "2.8.3"
