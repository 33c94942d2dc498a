"""The environment of a trial's own processes: nothing of the launcher that started the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A trial is one job of its own. A driver inside a Slurm allocation, torchrun or mpirun has variables of that job, which
# Lightning, torch.distributed and MPI would take for the trial's.
_LAUNCHERS = re.compile(
    r"SLURM_.*|SLURMD_.*|SRUN_.*|PMI_.*|PMIX_.*|OMPI_.*|MPI_LOCAL.*|MV2_COMM_.*|I_MPI_.*|PALS_.*|ALPS_.*|JSM_.*|FLUX_.*"
    r"|(?:LOCAL_|GROUP_|NODE_|ROLE_|CROSS_)?RANK|(?:LOCAL_|GROUP_|ROLE_|CROSS_)?WORLD_SIZE|LOCAL_SIZE|CROSS_SIZE"
    r"|ROLE_NAME|MASTER_ADDR|MASTER_PORT|NNODES|NPROC_PER_NODE|TORCHELASTIC_.*|TORCH_NCCL_ASYNC_ERROR_HANDLING"
    r"|HOROVOD_.*|ACCELERATE_.*|PL_GLOBAL_SEED|DEEPSPEED_.*|XLA_.*_RANK"
)

FIXED = {"PYTHONHASHSEED": "0"}  # unless the user sets it: sets of texts have the same order in every process


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables of Slurm, MPI and launchers such as torchrun."""
    return {name: value for name, value in environ.items() if not _LAUNCHERS.fullmatch(name)}
