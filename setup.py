"""Adds configs/ to the packages; pyproject.toml has everything else."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["fairseq_lrpe", "fairseq_lrpe.*", "data_prep", "data_prep.*"]),
        "fairseq_lrpe.configs",
    ],
    # A wheel contains configs/ as fairseq_lrpe/configs; utils/files.py finds both.
    package_dir={"fairseq_lrpe.configs": "configs"},
)
