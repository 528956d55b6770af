"""Links from the tour into What-if, with the workload and the settings of a stop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

WHAT_IF = "/what-if"


def what_if_link(workload_spec: Mapping[str, Any], settings_by_variant: Mapping[str, Mapping[str, Any]]) -> str:
    """The address of What-if with a workload and the settings of variants A to D.

    ``/what-if?workload={"kind":"list",...}&A.policy=static&B.policy=chunked``, percent-encoded; `workload` is JSON, as
    `dashboard.runs.workload_spec.workload_of` takes it.
    """
    fields = {"workload": json.dumps(workload_spec, separators=(",", ":"))}
    for variant, settings in settings_by_variant.items():
        fields |= {f"{variant}.{name}": str(value) for name, value in settings.items()}
    return f"{WHAT_IF}?{urlencode(fields)}"
