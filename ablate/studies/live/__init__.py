"""`ablate ui`: pages of all studies and trials, read from their ledgers at each request; nothing is written."""

from __future__ import annotations

from ablate.studies.live.server import listening, live_server, mlflow_beside, read_token
from ablate.studies.live.views import Views

__all__ = ["Views", "listening", "live_server", "mlflow_beside", "read_token"]
