"""What GPUs programs may see here, and what they and the installed torch can do together."""

import torch

BF16 = (8, 0)
"""The least compute capability with bfloat16."""


def gpus_here() -> dict[str, tuple[int, int]]:
    """Returns {name: compute capability} of the GPUs that programs may see, numbered as torch does."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        f"{torch.cuda.get_device_name(i)} (cuda:{i})": torch.cuda.get_device_capability(i)
        for i in range(count)
    }


def check_architectures() -> None:
    """Refuses, by ValueError, GPUs for which the installed torch holds no code.

    Their first kernel would end in "no kernel image is available for execution on the device".
    """
    if torch.version.cuda is None:  # of AMD's GPUs the architectures have other names
        return
    for name, capability in gpus_here().items():
        if not _runs_on(capability, torch.cuda.get_arch_list()):
            build = "cu126" if capability < (7, 5) else "default"
            raise ValueError(
                f"torch {torch.__version__} has no code for {name}, of compute capability "
                f"{_dotted(capability)}: run `bash scripts/setup_env.sh --torch {build}`, give --cpu, "
                "or leave the GPU out of CUDA_VISIBLE_DEVICES"
            )


def _runs_on(capability, architectures):
    # "sm_86" runs on 8.6 and later 8.x; "compute_90" is compiled when it is loaded, for 9.0 and later.
    for architecture in architectures:
        kind, number = architecture.rstrip("af").split("_")
        built = int(number[:-1]), int(number[-1])
        if built <= capability and (kind == "compute" or built[0] == capability[0]):
            return True
    return False


def check_bf16() -> None:
    """Refuses, by ValueError, bfloat16 on GPUs that only imitate it."""
    for name, capability in gpus_here().items():
        if capability < BF16:
            has = f"{name} has {_dotted(capability)}"
            raise ValueError(f"bf16 needs compute capability {_dotted(BF16)}, and {has}: use fp16")


def _dotted(capability):
    return ".".join(map(str, capability))
