import re
from pathlib import Path

from setuptools import find_packages, setup

source = Path(__file__).with_name("fairseq_lrpe") / "__init__.py"
[version] = re.findall('__version__ = "(.+)"', source.read_text(encoding="utf-8"))

# Versions are restricted only where other versions do not work; constraints.txt has the tested versions.
# - torch has no lower bound, so that an installation into an environment of fairseq changes nothing of it;
#   fairseq_lrpe itself rejects torch before 2.4.
# - Python 3.10 is for the plugin in an environment of the original fairseq; lrpe and [train] need 3.11.
# - tensorboardX: without it, every fairseq command logs a message to install it.
# - transformers: version 5 imports torchaudio, which has no build for this torch.
# - fla-core: it contains flash-linear-attention's kernels; 0.6 is the version that the backend supports.
# - triton: it is built for Linux only. Tests run these kernels and ours in its interpreter, without a GPU.
setup(
    name="fairseq-lrpe",
    version=version,
    description="Positional encodings for linear and softmax attention, for PyTorch and fairseq",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The fairseq-lrpe authors",
    license="MIT",
    packages=[
        *find_packages(include=["fairseq_lrpe", "fairseq_lrpe.*", "data_prep", "data_prep.*"]),
        "fairseq_lrpe.configs",
    ],
    # A wheel contains configs/ as fairseq_lrpe/configs; utils/files.py finds both.
    package_dir={"fairseq_lrpe.configs": "configs"},
    package_data={
        "fairseq_lrpe.configs": ["*/*.yaml"],
        "fairseq_lrpe.experiments.reporting": ["*.jinja"],
        "data_prep": ["sources.yaml", "grimm/*.txt"],
    },
    entry_points={"console_scripts": ["lrpe=fairseq_lrpe.cli:main"]},
    python_requires=">=3.10",
    install_requires=["torch"],
    extras_require={
        # For --user-dir in an existing environment of fairseq: what the plugin needs beyond fairseq.
        "plugin": ["pillow", "rouge-score", "tokenizers"],
        # For fairseq and the experiments, in a new environment.
        "train": [
            "fairseq-fixed>=0.12.3.1,<0.13",
            "numpy",
            "omegaconf",
            "hydra-core",
            "sacrebleu",
            "sentencepiece",
            "jinja2",
            "markupsafe",
            "matplotlib",
            "pandas",
            "pydantic>=2",
            "rich",
            "tqdm",
            "pyyaml",
            "regex",
            "rouge-score",
            "scikit-learn",
            "scipy",
            "pillow",
            "sacremoses",
            "subword-nmt",
            "tokenizers",
            "huggingface_hub",
            "submitit",
            "tensorboardX",
        ],
        "test": [
            "pytest",
            "pytest-xdist",
            "hypothesis",
            "ruff",
            "transformers<5",
            "pyarrow",
            "zstandard",
            "plotly",
            "mkdocs",
            "mkdocs-material",
            "mkdocstrings-python",
            "nbclient",
            "nbformat",
            "ipykernel",
            "fla-core>=0.6; sys_platform == 'linux'",
            "triton; sys_platform == 'linux'",
        ],
        # For the documentation site (mkdocs.yml).
        "docs": ["mkdocs", "mkdocs-material", "mkdocstrings-python"],
        "gpu": ["fla-core>=0.6", "triton; sys_platform == 'linux'"],
        # For one's own text and published data sets as Parquet, Arrow and .zst files.
        "data": ["pyarrow", "zstandard"],
        "bookcorpus": ["datasets"],
        # For fairseq_lrpe.hf and lrpe export.
        "hf": ["transformers>=4.56,<5"],
        # For reading published weights of BERT in question generation.
        "bert": ["transformers<5", "safetensors"],
        # For the interactive plots of lrpe report.
        "report": ["plotly"],
        # For fairseq's --tensorboard-logdir and --wandb-project.
        "tensorboard": ["tensorboard"],
        "wandb": ["wandb"],
    },
)
