"""All-reduce algorithms over links: direct, reduce-scatter with all-gather, ring, tree (and chain, star), butterfly."""
