"""How and when replicas agree: exchanges (HOW), paces (WHEN), and the engines that carry them."""
