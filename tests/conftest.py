"""Small tensors: one thread each is fastest, and results do not depend on the machine's cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)

if not torch.cuda.is_available():  # then Triton's kernels run in its interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")
