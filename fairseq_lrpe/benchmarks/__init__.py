"""The benchmarks and plots of ``lrpe bench``, and the GPU check."""
