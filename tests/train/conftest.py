"""The first step of an optimizer imports this, which takes seconds: once here instead of once in every worker."""

import torch._dynamo  # noqa: F401
