"""A trial's processes see nothing of the launcher of the driver."""

from __future__ import annotations

import pytest

from ablate.functions.launchers import own_environment

LAUNCHED = (
    "SLURM_NTASKS SLURM_PROCID SLURM_JOB_NAME RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE"
    " ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID OMPI_COMM_WORLD_RANK PMI_RANK"
    " PMIX_RANK NODE_RANK"
)
OWN = "PATH HOME CUDA_VISIBLE_DEVICES OMP_NUM_THREADS RANKING MY_RANK WORLD_SIZES MASTER SLURM PYTHONPATH NCCL_DEBUG"


@pytest.mark.parametrize("name", LAUNCHED.split())
def test_a_variable_of_a_launcher_is_left_out(name: str) -> None:
    assert own_environment({name: "1", "PATH": "/bin", "VIRTUAL_ENV": "/v"}) == {"PATH": "/bin", "VIRTUAL_ENV": "/v"}


@pytest.mark.parametrize("name", OWN.split())
def test_every_other_variable_stays(name: str) -> None:
    assert own_environment({name: "1", "VIRTUAL_ENV": "/v"}) == {name: "1", "VIRTUAL_ENV": "/v"}
