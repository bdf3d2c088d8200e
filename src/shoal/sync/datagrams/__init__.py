"""Replicas send each other what they have changed in datagrams, and nobody waits for any of them."""
