"""The modules that the ranks need, for their warm parent to import."""

import torch.optim
import torch.utils.data  # noqa: F401
