"""What travels: gradients in flat buckets, in the order the backward pass finishes them."""
