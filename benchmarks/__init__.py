"""Benchmarks of pairloom beside its peers; see README.md."""
