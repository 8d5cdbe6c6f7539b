from setuptools import find_packages, setup

# Lower bounds only where something breaks without them; the tested set of exact versions is in
# constraints.txt. numpy<2: fairseq's datasets still use np.compat. fla-core 0.6, flash-linear-attention's
# kernels without its models: what the backend was written for. transformers<5: 5 imports torchaudio, of which
# no build fits this torch. torch 2.6: the oldest that passes the tests. tensorboardX: fairseq asks for it at
# the start of every command.
setup(
    name="fairseq-lrpe",
    version="0.1.0",
    description="Linearized relative positional encoding (LRPE) as a fairseq plugin",
    author="The fairseq-lrpe authors",
    license="MIT",
    packages=find_packages(include=["fairseq_lrpe", "fairseq_lrpe.*", "data_prep", "data_prep.*"]),
    package_data={"fairseq_lrpe.experiments.reporting": ["*.jinja"]},
    entry_points={"console_scripts": ["lrpe=fairseq_lrpe.cli:main"]},
    python_requires=">=3.11,<3.13",
    install_requires=[
        "torch>=2.6",
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
    extras_require={
        "test": ["pytest", "pytest-xdist", "hypothesis", "ruff", "transformers<5", "plotly"],
        "gpu": ["fla-core>=0.6"],
        "bookcorpus": ["datasets"],
        # Published weights of BERT, for question generation.
        "bert": ["transformers<5", "safetensors"],
        # The page of everything that was run.
        "report": ["plotly"],
        # What fairseq's --tensorboard-logdir and --wandb-project log to.
        "tensorboard": ["tensorboard"],
        "wandb": ["wandb"],
    },
)
