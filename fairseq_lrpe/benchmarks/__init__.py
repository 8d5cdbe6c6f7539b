"""The benchmarks and plots of ``lrpe bench``."""
