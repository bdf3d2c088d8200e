"""Who trains which samples of a pass: one file per way to allocate them."""
