"""Lists the visible GPUs and checks what they support. The functions import torch, which takes seconds."""

from fairseq_lrpe.utils.errors import UserError


def gpus_here() -> dict[str, tuple[int, int]]:
    """Returns {name: compute capability (major, minor)} of the visible GPUs."""
    import torch

    gpus = {}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        name = f"{torch.cuda.get_device_name(index)} (cuda:{index})"
        gpus[name] = torch.cuda.get_device_capability(index)
    return gpus


def check_architectures() -> None:
    """Raises a UserError if the installed torch has no code for one of the visible GPUs.

    Without this check, the first kernel fails: "no kernel image is available for execution on the device".
    """
    import torch

    if torch.version.cuda is None:  # architectures of AMD GPUs have other names
        return
    for name, capability in gpus_here().items():
        if not any(_runs_on(capability, architecture) for architecture in torch.cuda.get_arch_list()):
            build = "cu126" if capability < (7, 5) else "default"
            raise UserError(
                f"torch {torch.__version__} has no code for {name} with compute capability "
                f"{capability[0]}.{capability[1]}: run `bash scripts/setup_env.sh --torch {build}`, use "
                "--cpu, or exclude the GPU from CUDA_VISIBLE_DEVICES"
            )


def _runs_on(capability, architecture):
    # Code for "sm_86" runs on GPUs with 8.6 to 8.9; "compute_90" is compiled on loading for 9.0 and later.
    kind, number = architecture.rstrip("af").split("_")
    built = int(number[:-1]), int(number[-1])
    return built <= capability and (kind == "compute" or built[0] == capability[0])


def check_bf16() -> None:
    for name, (major, minor) in gpus_here().items():
        if major < 8:
            raise UserError(f"{name} has compute capability {major}.{minor}, but bf16 needs 8.0: use fp16")
