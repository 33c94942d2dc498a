"""The environment of a trial's own processes: nothing of the launcher that started the driver."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

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
    """Return `environ` without the variables of Slurm, MPI and launchers such as torchrun.

    Where no environment of Python is activated, the one that ablate is installed in is: its programs are found first.
    """
    found = {name: value for name, value in environ.items() if not _LAUNCHERS.fullmatch(name)}
    activated = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX") or sys.prefix == sys.base_prefix
    if not activated:
        found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])
    return found
