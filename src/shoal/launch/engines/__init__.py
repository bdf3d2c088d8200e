"""Engines that start workers on more than one machine: one file for each, a contract, and what they share."""
