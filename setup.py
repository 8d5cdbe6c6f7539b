from pathlib import Path

from setuptools import find_packages, setup

# Versions are restricted only where other versions do not work; constraints.txt has the tested versions.
# - torch: 2.6 is the oldest version that passes the tests.
# - numpy: fairseq's datasets use np.compat, which numpy 2 does not have.
# - tensorboardX: without it, every fairseq command logs a message to install it.
# - transformers: version 5 imports torchaudio, which has no build for this torch.
# - fla-core: it contains flash-linear-attention's kernels; 0.6 is the version that the backend supports.
# - triton: it is built for Linux only. Tests run these kernels in its interpreter, which needs no GPU.
setup(
    name="fairseq-lrpe",
    version="1.0.0",
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
        "data_prep": ["sources.yaml"],
    },
    entry_points={"console_scripts": ["lrpe=fairseq_lrpe.cli:main"]},
    python_requires=">=3.11,<3.13",
    install_requires=["torch>=2.6"],
    extras_require={
        # For fairseq and the experiments.
        "train": [
            "fairseq-fixed>=0.12.3.1,<0.13",
            "numpy<2",
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
        "gpu": ["fla-core>=0.6"],
        "bookcorpus": ["datasets"],
        # For reading published weights of BERT in question generation.
        "bert": ["transformers<5", "safetensors"],
        # For the interactive plots of lrpe report.
        "report": ["plotly"],
        # For fairseq's --tensorboard-logdir and --wandb-project.
        "tensorboard": ["tensorboard"],
        "wandb": ["wandb"],
    },
)
